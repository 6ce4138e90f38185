#include "services/shard/grpc/shard_service.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_bridge.h"
#include "services/shard/grpc/up_stream.h"

namespace kvmesh::shard {
namespace {

constexpr uint32_t kPageDefault = 100;

v1::SessionState StateOf(SessionPhase phase) {
  switch (phase) {
    case SessionPhase::kLive:
      return v1::SESSION_STATE_LIVE;
    case SessionPhase::kIdle:
      return v1::SESSION_STATE_IDLE;
    case SessionPhase::kOrphaned:
      return v1::SESSION_STATE_ORPHANED;
  }
  return v1::SESSION_STATE_UNSPECIFIED;
}

void Encode(const SessionView& view, v1::SessionInfo* info) {
  info->set_session_id(view.id.ToHex());
  info->set_epoch(static_cast<uint64_t>(view.epoch));
  info->set_attempt(static_cast<uint64_t>(view.attempt));
  info->set_state(StateOf(view.phase));
  info->set_held(view.held);
  info->set_last_step(view.last_step);
  info->set_bytes(view.bytes);
  info->set_bytes_reserved(view.reserved);
  info->mutable_idle()->set_value(static_cast<uint64_t>(absl::ToInt64Milliseconds(view.idle)));
  info->set_tenant(view.tenant);
}

}  // namespace

ShardService::ShardService(ShardRuntime& runtime, const v1::DescribeResponse& description,
                           std::function<void()> drain)
    : CheckedService(runtime.metrics().metrics(), runtime.clock()),
      runtime_(runtime),
      description_(description),
      drain_(std::move(drain)),
      watchers_(runtime, [this](const ShardSnapshot& snapshot) { return Facts(snapshot); }) {
  TakeParsedStream<v1::ForwardRequest, v1::ForwardResponse>(
      "Forward",
      [this](grpc::CallbackServerContext* context) { return UpStream::Accept(context, runtime_); });
  CheckServerStreaming("Watch", &ShardService::Watch);
  CheckUnary("Describe", &ShardService::Describe);
  CheckUnary("ListSessions", &ShardService::ListSessions);
  CheckUnary("GetSession", &ShardService::GetSession);
  CheckUnary("DropSession", &ShardService::DropSession);
  CheckUnary("Drain", &ShardService::Drain);
}

v1::WatchResponse ShardService::Facts(const ShardSnapshot& snapshot) const {
  v1::WatchResponse facts = description_.shard();
  facts.mutable_capacity()->set_bytes_used(snapshot.bytes_used);
  facts.set_live_sessions(snapshot.live_sessions);
  facts.set_held_sessions(snapshot.held_sessions);
  facts.set_draining(snapshot.draining);
  return facts;
}

template <typename Handler>
grpc::ServerUnaryReactor* ShardService::Unary(grpc::CallbackServerContext* context, const char* rpc,
                                              Handler handler) {
  metrics::RpcTimer timer(runtime_.metrics().metrics(), runtime_.clock(), rpc);
  const grpc::Status status = rpc::ToGrpc(handler());
  timer.Finish(rpc::CodeName(status.error_code()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchResponse>* ShardService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  return watchers_.Accept(context, *request);
}

grpc::ServerUnaryReactor* ShardService::Describe(grpc::CallbackServerContext* context,
                                                 const v1::DescribeRequest*,
                                                 v1::DescribeResponse* response) {
  return Unary(context, "Describe", [&] {
    *response = description_;
    *response->mutable_shard() = Facts(runtime_.Snapshot());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ShardService::ListSessions(grpc::CallbackServerContext* context,
                                                     const v1::ListSessionsRequest* request,
                                                     v1::ListSessionsResponse* response) {
  return Unary(context, "ListSessions", [&] { return FillSessions(*request, response); });
}

absl::Status ShardService::FillSessions(const v1::ListSessionsRequest& request,
                                        v1::ListSessionsResponse* response) {
  if (request.page_size() > limits::kListPageMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page_size is ", request.page_size(), "; at most ", limits::kListPageMax, " is allowed"));
  }
  const uint32_t page = request.page_size() == 0 ? kPageDefault : request.page_size();
  std::optional<SessionId> after;
  if (!request.page_token().empty()) {
    KVMESH_ASSIGN_OR_RETURN(after, SessionId::FromHex(request.page_token(), "page_token"));
  }
  std::vector<SessionView> views = runtime_.ListSessions(after, size_t{page} + 1);
  const bool more = views.size() > page;
  if (more) views.pop_back();
  for (const SessionView& view : views) Encode(view, response->add_sessions());
  if (more) response->set_next_page_token(views.back().id.ToHex());
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ShardService::GetSession(grpc::CallbackServerContext* context,
                                                   const v1::GetSessionRequest* request,
                                                   v1::GetSessionResponse* response) {
  return Unary(context, "GetSession", [&]() -> absl::Status {
    KVMESH_ASSIGN_OR_RETURN(const SessionId id,
                            SessionId::FromHex(request->session_id(), "session_id"));
    const std::optional<SessionView> view = runtime_.GetSession(id);
    if (!view.has_value()) {
      return absl::NotFoundError(absl::StrCat("session ", id.ToHex(), " is not held here"));
    }
    Encode(*view, response->mutable_session());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ShardService::DropSession(grpc::CallbackServerContext* context,
                                                    const v1::DropSessionRequest* request,
                                                    v1::DropSessionResponse* response) {
  return Unary(context, "DropSession", [&]() -> absl::Status {
    KVMESH_ASSIGN_OR_RETURN(const SessionId id,
                            SessionId::FromHex(request->session_id(), "session_id"));
    const bool dropped = runtime_.DropSession(id, SessionEpoch{request->epoch()});
    if (dropped) LOG(INFO) << "session " << id.ToHex() << ": dropped by request";
    response->set_dropped(dropped);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ShardService::Drain(grpc::CallbackServerContext* context,
                                              const v1::ShardServiceDrainRequest*,
                                              v1::ShardServiceDrainResponse*) {
  return Unary(context, "Drain", [&] {
    drain_();
    return absl::OkStatus();
  });
}

}  // namespace kvmesh::shard

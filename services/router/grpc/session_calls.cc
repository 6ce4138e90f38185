#include "services/router/grpc/session_calls.h"

#include <utility>

#include "services/router/grpc/unary_call.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kDropTimeout = absl::Seconds(5);

template <typename Request, typename Response>
using Call = UnaryCall<v1::ShardService::Stub, Request, Response>;

}  // namespace

void ProbeSession(std::shared_ptr<v1::ShardService::Stub> stub, const SessionId& session,
                  absl::Duration timeout, std::function<void(bool answered)> done) {
  if (stub == nullptr) return done(false);
  auto call = std::make_shared<Call<v1::GetSessionRequest, v1::GetSessionResponse>>(std::move(stub),
                                                                                    timeout);
  call->request.set_session_id(session.ToHex());
  call->stub->async()->GetSession(
      &call->context, &call->request, &call->response,
      [call, done = std::move(done)](const grpc::Status& status) {
        done(status.error_code() != grpc::StatusCode::UNAVAILABLE &&
             status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
      });
}

void SendDropSession(std::shared_ptr<v1::ShardService::Stub> stub, const SessionId& session,
                     SessionEpoch epoch) {
  if (stub == nullptr) return;
  auto call = std::make_shared<Call<v1::DropSessionRequest, v1::DropSessionResponse>>(
      std::move(stub), kDropTimeout);
  call->request.set_session_id(session.ToHex());
  call->request.set_epoch(static_cast<uint64_t>(epoch));
  call->stub->async()->DropSession(&call->context, &call->request, &call->response,
                                   [call](const grpc::Status&) {});
}

}  // namespace kvmesh::router

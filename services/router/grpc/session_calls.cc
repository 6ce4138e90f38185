#include "services/router/grpc/session_calls.h"

#include <grpcpp/client_context.h>

#include <utility>

namespace kvmesh::router {
namespace {

constexpr absl::Duration kDropTimeout = absl::Seconds(5);

// Everything a unary call needs until its callback; owned by that callback alone, but std::function
// wants copies.
template <typename Request, typename Response>
struct Call {
  explicit Call(std::shared_ptr<v1::ShardService::Stub> its_stub, absl::Duration timeout)
      : stub(std::move(its_stub)) {
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
  std::shared_ptr<v1::ShardService::Stub> stub;
  grpc::ClientContext context;
  Request request;
  Response response;
};

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

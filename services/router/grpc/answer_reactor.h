// The server's side of Generate and Chat: writes a GenerationCall's events. Deletes itself in
// OnDone.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "common/metrics/metrics.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/router.pb.h"
#include "services/router/grpc/generation_call.h"

namespace kvmesh::router {

template <typename Response>
class AnswerReactor final : public grpc::ServerWriteReactor<Response>, public EventWriter {
 public:
  AnswerReactor(const Clock& clock, RouterMetrics& metrics, absl::string_view rpc)
      : timer_(metrics.all, clock, rpc),
        call_(std::make_shared<GenerationCall>(*this, clock, metrics)) {}

  // Shared with the work that prepares the generation, and with its driver.
  const std::shared_ptr<GenerationCall>& call() const { return call_; }

  void Write(v1::GenerateResponse&& event) override {
    response_.Clear();
    if (event.has_started()) {
      response_.mutable_started()->Swap(event.mutable_started());
    } else if (event.has_delta()) {
      response_.mutable_delta()->Swap(event.mutable_delta());
    } else {
      response_.mutable_finished()->Swap(event.mutable_finished());
    }
    this->StartWrite(&response_);
  }
  void End(const absl::Status& status) override {
    const grpc::Status result = rpc::ToGrpc(status);
    timer_.Finish(rpc::CodeName(result.error_code()));
    this->Finish(result);
  }

  void OnWriteDone(bool ok) override { call_->OnWriteDone(ok); }
  void OnCancel() override { call_->OnClientGone(); }
  void OnDone() override {
    call_->Detach();
    delete this;
  }

 private:
  metrics::RpcTimer timer_;
  const std::shared_ptr<GenerationCall> call_;
  Response response_;
};

}  // namespace kvmesh::router

// Unary calls that the arbiter's thread ends.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/rpc/status_bridge.h"
#include "services/meta/grpc/arbiter_loop.h"
#include "services/meta/grpc/meta_metrics.h"

namespace kvmesh::meta {

// Ends once, by End, on any thread; deletes itself. Until then whoever is to end it may use it.
class Call : public grpc::ServerUnaryReactor {
 public:
  Call(MetaMetrics& metrics, const Clock& clock, absl::string_view rpc)
      : timer_(metrics.metrics(), clock, rpc) {}

  void End(const absl::Status& status) {
    const grpc::Status wire = rpc::ToGrpc(status);
    timer_.Finish(rpc::CodeName(wire.error_code()));
    Finish(wire);
  }
  void OnDone() override { delete this; }
  // Neither OnDone nor OnCancel blocks: gRPC need not wake a thread of its executor for them, which
  // takes as long as a lookup.
  bool InternalInlineable() override { return true; }

 private:
  metrics::RpcTimer timer_;
};

// One command and its answer, which is a `Grant` or a status. A caller that goes away gives it up.
template <typename Grant>
class AskingCall final : public Call {
 public:
  using Call::Call;

  // Within the RPC's method: gRPC tells of a cancel only after that has returned, and the call
  // lives at least as long. `encode(grant, incarnation)` fills the response.
  template <typename Asked, typename Encode>
  grpc::ServerUnaryReactor* Ask(ArbiterLoop& loop, absl::StatusOr<Asked> command, Encode encode) {
    if (!command.ok()) {
      End(command.status());
      return this;
    }
    loop_ = &loop;
    ticket_ = loop.Ask(*std::move(command),
                       [this, encode](const Answer& answer, const Incarnation& incarnation) {
                         if (const Grant* grant = std::get_if<Grant>(&answer)) {
                           encode(*grant, incarnation);
                           End(absl::OkStatus());
                         } else if (const auto* status = std::get_if<absl::Status>(&answer)) {
                           End(*status);
                         } else {
                           End(absl::InternalError("the arbiter answered something else"));
                         }
                       });
    return this;
  }
  void OnCancel() override {
    if (loop_ != nullptr) loop_->Abandon(ticket_);
  }

 private:
  ArbiterLoop* loop_ = nullptr;
  Ticket ticket_{0};
};

}  // namespace kvmesh::meta

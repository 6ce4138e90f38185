// One Verify: a slab after the other, each read at the store's pace on the one thread for it.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_bridge.h"
#include "services/blob/grpc/blob_codec.h"
#include "services/blob/grpc/blob_service.h"

namespace kvmesh::blob {
namespace {

class VerifyReactor final : public grpc::ServerWriteReactor<v1::VerifyResponse> {
 public:
  VerifyReactor(ServiceContext& context, grpc::CallbackServerContext* call,
                const v1::VerifyRequest* request)
      : context_(context),
        call_(call),
        timer_(context.metrics.metrics(), context.clock, "Verify"),
        all_(!request->has_slab()) {
    const absl::Status started = Start(*request);
    if (started.ok()) {
      SubmitWork();
    } else {
      End(started);
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the client is gone"));
    SubmitWork();
  }
  void OnDone() override { delete this; }
  void OnCancel() override {}

 private:
  absl::Status Start(const v1::VerifyRequest& request) {
    if (!all_) {
      const absl::StatusOr<SlabName> name = DecodeName(request.slab());
      if (!name.ok()) return name.status();
      one_ = *name;
    }
    if (context_.verifying.exchange(true)) return BusyStatus("another Verify runs");
    holds_turn_ = true;
    return absl::OkStatus();
  }
  void SubmitWork() {
    if (!context_.verifies.Submit([this] { Work(); })) End(BusyStatus("another Verify runs"));
  }
  void Work();
  std::optional<SlabName> NextName();
  void End(const absl::Status& status);

  ServiceContext& context_;
  grpc::CallbackServerContext* call_;
  metrics::RpcTimer timer_;
  const bool all_;
  bool holds_turn_ = false;
  std::optional<SlabName> one_;  // taken when it is verified
  std::optional<SlabName> last_;
  v1::VerifyResponse response_;
};

std::optional<SlabName> VerifyReactor::NextName() {
  if (!all_) return std::exchange(one_, std::nullopt);
  const Listing next = context_.store.List(last_, 1);
  if (next.slabs.empty()) return std::nullopt;
  last_ = next.slabs.front().name;
  return last_;
}

void VerifyReactor::Work() {
  const std::optional<SlabName> name = NextName();
  if (!name) return End(absl::OkStatus());
  const absl::Status verified = context_.store.Verify(*name, [this](uint64_t bytes) {
    if (call_->IsCancelled()) return absl::CancelledError("the client is gone");
    return context_.pacer.Take(bytes);
  });
  if (absl::IsCancelled(verified)) return End(verified);
  if (absl::IsNotFound(verified) && !all_) return End(verified);
  response_.Clear();
  *response_.mutable_slab() = EncodeName(*name);
  response_.set_sound(verified.ok());
  if (!verified.ok()) response_.set_defect(std::string(verified.message()));
  context_.UpdateUsage();
  StartWrite(&response_);
}

void VerifyReactor::End(const absl::Status& status) {
  if (holds_turn_) context_.verifying = false;
  const grpc::Status wire = rpc::ToGrpc(status);
  timer_.Finish(rpc::CodeName(wire.error_code()));
  Finish(wire);
}

}  // namespace

grpc::ServerWriteReactor<v1::VerifyResponse>* NewVerifyReactor(ServiceContext& context,
                                                               grpc::CallbackServerContext* call,
                                                               const v1::VerifyRequest* request) {
  return new VerifyReactor(context, call, request);
}

}  // namespace kvmesh::blob

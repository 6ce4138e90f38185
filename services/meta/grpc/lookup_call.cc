#include "services/meta/grpc/lookup_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "services/meta/grpc/meta_codec.h"

namespace kvmesh::meta {
namespace {

// A hit that was gone when it was to be pinned is looked up again so often. By then the index
// knows that it is gone.
constexpr uint32_t kCheckoutsLostMax = 2;

class LookupCall final : public Call {
 public:
  LookupCall(ArbiterLoop& loop, const ReadIndex& index, MetaMetrics& metrics, const Clock& clock,
             const v1::LookupRequest& request, v1::LookupResponse* response)
      : Call(metrics, clock, "Lookup"),
        loop_(loop),
        index_(index),
        metrics_(metrics),
        clock_(clock),
        request_(request),
        response_(response) {
    response_->clear_lease();
  }

  void Start() {
    if (const absl::Status started = Prepare(); !started.ok()) return End(started);
    Find();
  }

 private:
  absl::Status Prepare() {
    KVMESH_RETURN_IF_ERROR(CheckText(request_.text()));
    KVMESH_ASSIGN_OR_RETURN(const slab::KeyNamespace key_namespace,
                            DecodeNamespace(request_.namespace_()));
    if (request_.checkout()) {
      KVMESH_ASSIGN_OR_RETURN(lease_, DecodeLeaseId(request_.lease_id()));
    }
    absl::string_view text = request_.text();
    if (request_.text_bytes_max() > 0) text = text.substr(0, request_.text_bytes_max());
    started_ = clock_.Now();
    query_.emplace(key_namespace, text);
    return absl::OkStatus();
  }

  void Find() {
    const std::optional<LookupHit> hit = index_.Lookup(*query_, request_.token_count_min());
    if (started_) metrics_.ObserveLookup(clock_.Now() - *std::exchange(started_, std::nullopt));
    if (!hit) return EndWithMiss();
    if (request_.checkout()) return Pin(*hit);
    loop_.Touch({.row = hit->row, .key = hit->row_key});
    EncodeHit(*hit, index_, response_);
    EndWithHit();
  }

  void Pin(const LookupHit& hit) {
    const Checkout checkout{.key = hit.row_key,
                            .write_id = hit.slabs.front().write_id,
                            .lease = lease_,
                            .or_held = true};
    loop_.Ask(checkout, [this, hit](const Answer& answer, const Incarnation& incarnation) {
      if (const auto* grant = std::get_if<LeaseGrant>(&answer)) {
        return EndWithLease(hit, *grant, incarnation);
      }
      const auto* status = std::get_if<absl::Status>(&answer);
      if (status == nullptr) return End(absl::InternalError("the arbiter answered something else"));
      if (!absl::IsNotFound(*status)) return End(*status);
      LookAgain();
    });
  }

  // The lease may pin another row than was found now, by an answer that was lost: a longer one has
  // come since.
  void EndWithLease(LookupHit hit, const LeaseGrant& grant, const Incarnation& incarnation) {
    if (grant.row.key != hit.row_key) {
      PromptPath path(*query_);
      std::optional<LookupHit> held = index_.LookupRow(grant.row.id, path);
      if (!held || held->token_count < request_.token_count_min()) {
        return End(WithErrorInfo(
            absl::AlreadyExistsError("the lease_id pins a row that is no hit for this text"),
            ErrorInfo{.reason = "LEASE_ID_IN_USE"}));
      }
      hit = *std::move(held);
    }
    EncodeHit(hit, index_, response_);
    *response_->mutable_row() = EncodeRow(grant.row);
    *response_->mutable_lease() = EncodeLease(grant.lease, grant.ttl, incarnation);
    EndWithHit();
  }

  // On the arbiter's thread: the digests of the text are there already.
  void LookAgain() {
    metrics_.CountLostCheckout();
    if (++checkouts_lost_ <= kCheckoutsLostMax) return Find();
    EndWithMiss();
  }

  void EndWithMiss() {
    metrics_.CountMiss();
    response_->Clear();
    response_->set_checkouts_lost(checkouts_lost_);
    End(absl::OkStatus());
  }

  void EndWithHit() {
    const std::optional<Tier> tier = response_->row().slabs().empty()
                                         ? std::nullopt
                                         : TierFromName(response_->row().slabs(0).tier());
    metrics_.CountHit(tier.value_or(Tier::kRam), response_->token_count());
    response_->set_checkouts_lost(checkouts_lost_);
    End(absl::OkStatus());
  }

  ArbiterLoop& loop_;
  const ReadIndex& index_;
  MetaMetrics& metrics_;
  const Clock& clock_;
  const v1::LookupRequest& request_;
  v1::LookupResponse* const response_;
  LeaseId lease_;
  uint32_t checkouts_lost_ = 0;
  std::optional<LookupQuery> query_;
  std::optional<MonoTime> started_;  // of the first lookup
};

}  // namespace

grpc::ServerUnaryReactor* NewLookupCall(ArbiterLoop& loop, const ReadIndex& index,
                                        MetaMetrics& metrics, const Clock& clock,
                                        const v1::LookupRequest& request,
                                        v1::LookupResponse* response) {
  auto* call = new LookupCall(loop, index, metrics, clock, request, response);
  call->Start();
  return call;
}

}  // namespace kvmesh::meta

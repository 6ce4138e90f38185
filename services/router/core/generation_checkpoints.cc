#include "services/router/core/generation_checkpoints.h"

#include <algorithm>
#include <utility>

#include "common/base/sha256.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kRenewIntervalMin = absl::Milliseconds(100);

}  // namespace

GenerationCheckpoints::GenerationCheckpoints(const CheckpointSetup& setup, CheckpointUse use,
                                             const SessionId& session, Effects& effects)
    : options_(setup.options),
      tokenizer_(setup.tokenizer),
      use_(std::move(use)),
      effects_(effects),
      ids_(session),
      planner_(options_, ids_, effects),
      saves_(options_, ids_, effects),
      repair_(options_, ids_, effects),
      renew_interval_(options_.renew_interval) {}

void GenerationCheckpoints::SetRoute(const RoutePlan& route) {
  route_ = route;
  if (!keys_.has_value()) keys_.emplace(route.cache_namespace);
}

void GenerationCheckpoints::ForgetText() {
  text_ = KeyText();
  keys_.emplace(route_.cache_namespace);
}

const KeyText& GenerationCheckpoints::TextOf(absl::Span<const uint32_t> ids) {
  if (ids.size() > text_.tokens()) text_.Append(ids.subspan(text_.tokens()), tokenizer_);
  return text_;
}

Sha256Digest GenerationCheckpoints::KeyAt(size_t tokens) {
  return keys_->At(text_.text(), text_.End(tokens));
}

std::shared_ptr<const PromptText> GenerationCheckpoints::Prompt(const std::vector<uint32_t>& ids) {
  return std::make_shared<const PromptText>(PromptText{.ids = ids, .text = TextOf(ids)});
}

std::vector<LayerRange> GenerationCheckpoints::HopLayers() const {
  std::vector<LayerRange> layers;
  layers.reserve(route_.hops.size());
  for (const forward::HopRef& hop : route_.hops) layers.push_back(hop.layers);
  return layers;
}

void GenerationCheckpoints::LookUpPrompt(const std::vector<uint32_t>& ids, uint64_t tokens_max,
                                         MonoTime now) {
  RestoreRequest request{.cache_namespace = route_.cache_namespace,
                         .hops = HopLayers(),
                         .prompt = Prompt(ids),
                         .parent_key = std::nullopt,
                         .exact_tokens = use_.require_exact_tokens,
                         .tokens_max = tokens_max};
  // Waited for once: what has not appeared then will not matter to this generation.
  if (!std::exchange(parent_tried_, true)) request.parent_key = use_.parent_key;
  planner_.Begin(std::move(request), now);
  renew_at_ = std::min(renew_at_, now + renew_interval_);
}

void GenerationCheckpoints::LookUpSequence(const std::vector<uint32_t>& ids, MonoTime now) {
  planner_.Begin({.cache_namespace = route_.cache_namespace,
                  .hops = HopLayers(),
                  .prompt = Prompt(ids),
                  .parent_key = std::nullopt,
                  .exact_tokens = true,
                  .tokens_max = ids.size()},
                 now);
  renew_at_ = std::min(renew_at_, now + renew_interval_);
}

void GenerationCheckpoints::BeginRepair(const std::vector<uint32_t>& ids,
                                        const std::vector<uint32_t>& lost, uint32_t step,
                                        MonoTime now) {
  TextOf(ids);
  std::vector<FragmentPosition> positions;
  positions.reserve(2);
  for (const size_t tokens : {ids.size() - 1, ids.size()}) {
    positions.push_back({.key = KeyAt(tokens),
                         .tokens_sha256 = TokensSha256(absl::MakeConstSpan(ids).first(tokens)),
                         .tokens = tokens});
  }
  repair_.Begin(route_.cache_namespace, route_.hops, lost, std::move(positions), step, now);
  renew_at_ = std::min(renew_at_, now + renew_interval_);
}

void GenerationCheckpoints::Reserve(forward::SaveReason reason, const SavePoint& point) {
  if (point.at_tokens == 0) return saves_.Skip(reason, point.skipped);
  saves_.Reserve({.reason = reason,
                  .at_tokens = point.at_tokens,
                  .exact = point.exact,
                  .key = KeyAt(point.at_tokens),
                  .text_bytes = text_.End(point.at_tokens)},
                 route_, use_.save_tier);
}

void GenerationCheckpoints::SaveCold(const std::vector<uint32_t>& prompt, uint64_t restored) {
  const KeyText& text = TextOf(prompt);
  for (const SavePoint& point :
       ColdSavePoints(options_.gates, options_.state_can_be_cut, text, prompt.size(), restored)) {
    Reserve(forward::SaveReason::kCold, point);
  }
}

bool GenerationCheckpoints::SaveContinued(const std::vector<uint32_t>& ids, uint32_t generated) {
  if (generated - continued_at_ < options_.gates.continued_interval) return false;
  const uint64_t held = ids.size() - 1;
  const std::optional<SavePoint> point = ContinuedSavePoint(
      options_.gates, options_.state_can_be_cut, TextOf(ids), held, generated, continued_at_);
  if (!point.has_value()) return false;
  continued_at_ = generated;
  Reserve(forward::SaveReason::kContinued, *point);
  return point->exact;
}

bool GenerationCheckpoints::SaveFinish(const std::vector<uint32_t>& ids, uint64_t seen,
                                       uint64_t held) {
  const SavePoint point =
      FinishSavePoint(options_.gates, options_.state_can_be_cut, TextOf(ids), seen, held);
  Reserve(forward::SaveReason::kFinish, point);
  return saves_.reserving();
}

std::optional<Sha256Digest> GenerationCheckpoints::FinishKey(const std::vector<uint32_t>& ids,
                                                             uint64_t seen, uint64_t held) {
  const size_t at = TextOf(ids).BoundaryAtOrBefore(std::min(seen, held));
  if (at == 0) return std::nullopt;
  return KeyAt(at);
}

void GenerationCheckpoints::Granted(absl::Duration ttl, MonoTime now) {
  renew_interval_ = std::min(renew_interval_, std::max(ttl / 3, kRenewIntervalMin));
  renew_at_ = std::min(renew_at_, now + renew_interval_);
}

void GenerationCheckpoints::StopLooking() {
  planner_.Cancel();
  repair_.End("");
}

std::vector<LeaseId> GenerationCheckpoints::Leases() const {
  std::vector<LeaseId> leases = repair_.Leases();
  if (planner_.lease().has_value()) leases.push_back(*planner_.lease());
  return leases;
}

void GenerationCheckpoints::Tick(MonoTime now) {
  planner_.Tick(now);
  repair_.Tick(now);
  if (now < renew_at_) return;
  renew_at_ = now + renew_interval_;
  RenewHolds renew{.leases = Leases(), .writes = saves_.Held()};
  if (!renew.leases.empty() || !renew.writes.empty()) effects_.emplace_back(std::move(renew));
}

MonoTime GenerationCheckpoints::NextTimer() const {
  return std::min({planner_.NextTimer(), repair_.NextTimer(), renew_at_});
}

}  // namespace kvmesh::router

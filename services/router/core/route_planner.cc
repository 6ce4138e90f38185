#include "services/router/core/route_planner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"
#include "common/model/model.h"

namespace kvmesh::router {
namespace {

constexpr size_t kProblemsShownMax = 8;

std::string Describe(const ShardFacts& shard) {
  return absl::StrCat(shard.address, " [", shard.layers.begin, ",", shard.layers.end, ")");
}

std::string Short(const Sha256Digest& digest) {
  return digest.ToHex().substr(0, 12);
}

std::string Ranges(const std::vector<LayerRange>& ranges) {
  return absl::StrJoin(ranges, ", ", [](std::string* out, const LayerRange& range) {
    absl::StrAppend(out, "[", range.begin, ",", range.end, ")");
  });
}

// Two digests, of which a zero one is not known, may be of the same thing.
bool Compatible(const Sha256Digest& a, const Sha256Digest& b) {
  return a.is_zero() || b.is_zero() || a == b;
}

void Learn(const Sha256Digest& from, Sha256Digest* to) {
  if (to->is_zero()) *to = from;
}

// Shards that may stand in one route together. What one of them says of the model binds those that
// join later.
class Family {
 public:
  explicit Family(const ShardFacts& founder) : founder_(&founder) {
    layers_.resize(founder.layer_count);
    Add(founder);
  }

  // Why `shard` cannot join; empty: it can.
  std::string Conflict(const ShardFacts& shard) const {
    if (shard.quant != founder_->quant) return Differ("quant", founder_->quant, shard.quant, shard);
    if (shard.numerics_id != founder_->numerics_id) {
      return Differ("numerics", founder_->numerics_id, shard.numerics_id, shard);
    }
    if (shard.hidden_size != founder_->hidden_size) {
      return Differ("hidden size", absl::StrCat(founder_->hidden_size),
                    absl::StrCat(shard.hidden_size), shard);
    }
    if (!Compatible(embedding_, shard.embedding_digest)) {
      return Differ("embedding", Short(embedding_), Short(shard.embedding_digest), shard);
    }
    if (!Compatible(head_, shard.head_digest)) {
      return Differ("head", Short(head_), Short(shard.head_digest), shard);
    }
    for (uint32_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
      const Sha256Digest& digest = shard.layer_digests[layer - shard.layers.begin];
      if (!Compatible(layers_[layer], digest)) {
        return Differ(absl::StrCat("layer ", layer), Short(layers_[layer]), Short(digest), shard);
      }
    }
    return "";
  }

  void Add(const ShardFacts& shard) {
    members_.push_back(&shard);
    Learn(shard.embedding_digest, &embedding_);
    Learn(shard.head_digest, &head_);
    for (uint32_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
      Learn(shard.layer_digests[layer - shard.layers.begin], &layers_[layer]);
    }
  }

  const std::vector<const ShardFacts*>& members() const { return members_; }
  const Sha256Digest& embedding() const { return embedding_; }
  const Sha256Digest& head() const { return head_; }
  const std::vector<Sha256Digest>& layers() const { return layers_; }

 private:
  std::string Differ(absl::string_view what, absl::string_view ours, absl::string_view theirs,
                     const ShardFacts& shard) const {
    return absl::StrCat(what, " ", ours, " at ", Describe(*founder_), " but ", theirs, " at ",
                        Describe(shard));
  }

  const ShardFacts* founder_;
  std::vector<const ShardFacts*> members_;
  Sha256Digest embedding_;
  Sha256Digest head_;
  std::vector<Sha256Digest> layers_;
};

// What a route costs; the least is taken. Loads are summed, so that the least loaded replica of
// each range wins.
struct Cost {
  uint32_t suspects = 0;
  uint32_t cacheless = 0;
  double load = 0;
  uint32_t hops = 0;
  Cost operator+(const Cost& other) const {
    return {suspects + other.suspects, cacheless + other.cacheless, load + other.load,
            hops + other.hops};
  }
  bool operator<(const Cost& other) const {
    return std::tie(suspects, cacheless, load, hops) <
           std::tie(other.suspects, other.cacheless, other.load, other.hops);
  }
};

double Share(double used, double max) {
  return max > 0 ? used / max : 0;
}

Cost CostOf(const ShardFacts& shard, const RouteRequest& request) {
  const HopKey key{shard.address, shard.instance};
  const bool avoid =
      std::find(request.avoid.begin(), request.avoid.end(), key) != request.avoid.end();
  const double load =
      std::max(Share(shard.live_sessions, shard.sessions_max),
               Share(static_cast<double>(shard.bytes_used), static_cast<double>(shard.bytes_max)));
  return {.suspects = avoid ? 1u : 0u,
          .cacheless = request.stateless || shard.supports_kv_cache ? 0u : 1u,
          // A small share per hop, so that of equally idle routes the shorter one wins.
          .load = load + 1.0 / 1024,
          .hops = 1};
}

struct Candidate {
  Cost cost;
  std::vector<const ShardFacts*> hops;
};

// Cheapest chain over the range boundaries: a shortest path, each boundary being reached from
// smaller ones only.
std::optional<Candidate> CheapestChain(const Family& family, uint32_t layer_count,
                                       const RouteRequest& request) {
  std::vector<const ShardFacts*> members = family.members();
  std::sort(members.begin(), members.end(), [](const ShardFacts* a, const ShardFacts* b) {
    return std::tie(a->layers.begin, a->address, a->instance) <
           std::tie(b->layers.begin, b->address, b->instance);
  });
  struct Reached {
    Cost cost;
    const ShardFacts* last = nullptr;
  };
  std::vector<std::optional<Reached>> reached(layer_count + 1);
  reached[0] = Reached{};
  for (const ShardFacts* shard : members) {
    const std::optional<Reached>& from = reached[shard->layers.begin];
    if (!from.has_value()) continue;
    const Cost cost = from->cost + CostOf(*shard, request);
    std::optional<Reached>& to = reached[shard->layers.end];
    if (cost.hops <= limits::kHopsMax && (!to.has_value() || cost < to->cost)) {
      to = Reached{cost, shard};
    }
  }
  if (!reached[layer_count].has_value()) return std::nullopt;
  Candidate candidate{.cost = reached[layer_count]->cost};
  for (uint32_t at = layer_count; at > 0; at = candidate.hops.back()->layers.begin) {
    candidate.hops.push_back(reached[at]->last);
  }
  std::reverse(candidate.hops.begin(), candidate.hops.end());
  return candidate;
}

Sha256Digest ComposeFingerprint(const Family& family, const ModelIdentity& own) {
  return model::ModelFingerprint(family.layers(), family.embedding(), family.head(),
                                 own.config_digest, own.tokenizer_digest);
}

// All that changes the state besides weights and text; each field with its length before it, as in
// a key (§5.1).
Sha256Digest CtxParamsHash(const ModelIdentity& own, absl::string_view numerics_id,
                           absl::string_view tenant_salt) {
  Sha256 sha;
  for (const absl::string_view field :
       {own.config_digest.bytes(), own.tokenizer_digest.bytes(), numerics_id, tenant_salt}) {
    sha.UpdateU64(field.size()).Update(field);
  }
  return sha.Digest();
}

bool MeetsPin(const ShardFacts& shard, const RoutePin& pin) {
  if (shard.quant != pin.quant || shard.numerics_id != pin.numerics_id) return false;
  if (pin.layer_digests.size() != shard.layer_count) return false;
  return std::equal(shard.layer_digests.begin(), shard.layer_digests.end(),
                    pin.layer_digests.begin() + shard.layers.begin);
}

bool HasCheckpoints(const ShardFacts& shard) {
  return std::find(shard.features.begin(), shard.features.end(), forward::kCheckpointsFeature) !=
         shard.features.end();
}

RoutePlan ToPlan(const Candidate& candidate, const Family& family, const ModelIdentity& own,
                 const RouteRequest& request) {
  RoutePlan plan{.numerics_id = candidate.hops[0]->numerics_id,
                 .layer_digests = family.layers(),
                 .stateless = request.stateless || candidate.cost.cacheless > 0,
                 .checkpoints = true,
                 .hidden_size = candidate.hops[0]->hidden_size,
                 .context_length = std::numeric_limits<uint32_t>::max()};
  for (const ShardFacts* shard : candidate.hops) {
    plan.hops.push_back({shard->address, shard->instance, shard->layers});
    plan.state_bytes.push_back(shard->state_bytes);
    plan.checkpoints = plan.checkpoints && HasCheckpoints(*shard);
    plan.context_length = std::min(plan.context_length, shard->context_length);
  }
  plan.cache_namespace = {
      .model_fp = ComposeFingerprint(family, own),
      .quant = candidate.hops[0]->quant,
      .ctx_params_hash = CtxParamsHash(own, plan.numerics_id, request.tenant_salt)};
  return plan;
}

std::vector<Family> Families(const std::vector<const ShardFacts*>& usable,
                             std::vector<std::string>* conflicts) {
  std::vector<Family> families;
  for (const ShardFacts* shard : usable) {
    bool joined = false;
    for (Family& family : families) {
      std::string conflict = family.Conflict(*shard);
      if (conflict.empty()) {
        family.Add(*shard);
        joined = true;
        break;
      }
      conflicts->push_back(std::move(conflict));
    }
    if (!joined) families.emplace_back(*shard);
  }
  return families;
}

std::vector<LayerRange> Uncovered(const std::vector<const ShardFacts*>& shards,
                                  uint32_t layer_count) {
  std::vector<bool> covered(layer_count, false);
  for (const ShardFacts* shard : shards) {
    for (uint32_t layer = shard->layers.begin; layer < std::min(shard->layers.end, layer_count);
         ++layer) {
      covered[layer] = true;
    }
  }
  std::vector<LayerRange> missing;
  for (uint32_t layer = 0; layer < layer_count; ++layer) {
    if (covered[layer]) continue;
    if (!missing.empty() && missing.back().end == layer) {
      ++missing.back().end;
    } else {
      missing.push_back({layer, layer + 1});
    }
  }
  return missing;
}

absl::Status NoRoute(absl::Span<const ShardFacts> shards, const ModelIdentity& own,
                     const RouteRequest& request, const std::vector<const ShardFacts*>& usable,
                     std::vector<std::string> conflicts) {
  std::vector<const ShardFacts*> all;
  for (const ShardFacts& shard : shards) {
    if (!shard.draining && shard.layer_count == own.layer_count) all.push_back(&shard);
  }
  if (request.pin.has_value()) {
    const std::vector<LayerRange> missing = Uncovered(usable, own.layer_count);
    return absl::UnavailableError(
        absl::StrCat("no shard of the model ", Short(request.pin->model_fp), ", quant ",
                     request.pin->quant, " and numerics ", request.pin->numerics_id,
                     " that this generation began with serves layers ",
                     missing.empty() ? "as a chain" : Ranges(missing)));
  }
  // Shards that do not fit the router's own model count as mismatches only where they would close
  // the gap.
  absl::string_view mismatch = reason::kModelMismatch;
  for (const ShardFacts& shard : shards) {
    if (shard.draining) continue;
    const std::string why = WhyUnusable(shard, own);
    if (why.empty()) continue;
    conflicts.push_back(why);
    if (shard.protocol_version != limits::kProtocolVersion) {
      mismatch = reason::kProtocolMismatch;
    }
  }
  const std::vector<LayerRange> missing = Uncovered(usable, own.layer_count);
  const bool foreign_models = all.empty() && !conflicts.empty();
  const bool all_covered = Uncovered(all, own.layer_count).empty();
  if (!conflicts.empty() && (all_covered || foreign_models)) {
    if (conflicts.size() > kProblemsShownMax) conflicts.resize(kProblemsShownMax);
    return WithErrorInfo(absl::FailedPreconditionError(absl::StrCat(
                             "the shards do not fit together: ", absl::StrJoin(conflicts, "; "))),
                         {.reason = std::string(mismatch)});
  }
  if (!missing.empty()) {
    return absl::UnavailableError(
        absl::StrCat("no shard serves layers ", Ranges(missing), " of ", own.layer_count));
  }
  std::vector<LayerRange> served;
  served.reserve(usable.size());
  for (const ShardFacts* shard : usable) served.push_back(shard->layers);
  return absl::UnavailableError(absl::StrCat("the served ranges ", Ranges(served),
                                             " form no chain over layers [0,", own.layer_count,
                                             ") without overlap"));
}

}  // namespace

std::string WhyUnusable(const ShardFacts& shard, const ModelIdentity& own) {
  const auto differ = [&shard](absl::string_view what, absl::string_view ours,
                               absl::string_view theirs) {
    return absl::StrCat(what, " ", ours, " at the router but ", theirs, " at ", Describe(shard));
  };
  if (shard.protocol_version != limits::kProtocolVersion) {
    return differ("protocol", absl::StrCat(limits::kProtocolVersion),
                  absl::StrCat(shard.protocol_version));
  }
  if (shard.layer_count != own.layer_count) {
    return differ("layers", absl::StrCat(own.layer_count), absl::StrCat(shard.layer_count));
  }
  if (shard.config_digest != own.config_digest) {
    return differ("model config", Short(own.config_digest), Short(shard.config_digest));
  }
  if (shard.tokenizer_digest != own.tokenizer_digest) {
    return differ("tokenizer", Short(own.tokenizer_digest), Short(shard.tokenizer_digest));
  }
  const LayerRange& layers = shard.layers;
  if (layers.begin >= layers.end || layers.end > shard.layer_count ||
      shard.layer_digests.size() != layers.size()) {
    return absl::StrCat("layers [", layers.begin, ",", layers.end, ") of ", shard.layer_count,
                        " with ", shard.layer_digests.size(), " digests at ", shard.address);
  }
  return "";
}

std::vector<LayerRange> MissingLayers(absl::Span<const ShardFacts> shards,
                                      const ModelIdentity& own) {
  std::vector<const ShardFacts*> usable;
  for (const ShardFacts& shard : shards) {
    if (!shard.draining && WhyUnusable(shard, own).empty()) usable.push_back(&shard);
  }
  return Uncovered(usable, own.layer_count);
}

absl::StatusOr<RoutePlan> PlanRoute(absl::Span<const ShardFacts> shards, const ModelIdentity& own,
                                    const RouteRequest& request) {
  std::vector<const ShardFacts*> usable;
  for (const ShardFacts& shard : shards) {
    if (shard.draining || !WhyUnusable(shard, own).empty()) continue;
    if (request.pin.has_value() && !MeetsPin(shard, *request.pin)) continue;
    usable.push_back(&shard);
  }
  std::vector<std::string> conflicts;
  const std::vector<Family> families = Families(usable, &conflicts);
  std::optional<Candidate> best;
  const Family* best_family = nullptr;
  for (const Family& family : families) {
    std::optional<Candidate> candidate = CheapestChain(family, own.layer_count, request);
    if (!candidate.has_value() || (best.has_value() && !(candidate->cost < best->cost))) continue;
    if (request.pin.has_value() && ComposeFingerprint(family, own) != request.pin->model_fp)
      continue;
    best = std::move(candidate);
    best_family = &family;
  }
  if (!best.has_value()) return NoRoute(shards, own, request, usable, std::move(conflicts));
  return ToPlan(*best, *best_family, own, request);
}

}  // namespace kvmesh::router

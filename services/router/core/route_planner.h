// Which shards a generation runs on: a chain of hops that covers layers 0..L-1 exactly once. Pure
// functions of the facts that the shards' Watch streams gave.
//
// Members of a route agree on the model (layer, embedding, head, config and tokenizer digests), on
// quant, numerics id and protocol version. Replicas may be split differently. Among the possible
// routes the one with the fewest suspects wins, then one that can cache, then the least loaded,
// then the shortest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "services/router/core/save_policy.h"

namespace kvmesh::router {

// What one shard process said of itself.
struct ShardFacts {
  std::string address;
  InstanceId instance;
  LayerRange layers;
  uint32_t layer_count = 0;                 // of the whole model
  std::vector<Sha256Digest> layer_digests;  // [layers.size()]
  Sha256Digest embedding_digest;            // zero: not known to this shard
  Sha256Digest head_digest;                 // zero: not known to this shard
  Sha256Digest config_digest;
  Sha256Digest tokenizer_digest;
  uint32_t protocol_version = 0;
  std::vector<std::string> features;
  std::string quant;
  std::string numerics_id;
  bool supports_kv_cache = false;
  bool draining = false;
  uint32_t live_sessions = 0;
  uint32_t sessions_max = 0;
  uint64_t bytes_used = 0;
  uint64_t bytes_max = 0;
  HopStateBytes state_bytes;    // of one session
  uint32_t context_length = 0;  // tokens
  uint32_t hidden_size = 0;
  uint32_t vocab_size = 0;
};

// One process at one address; a restarted process is another key.
struct HopKey {
  std::string address;
  InstanceId instance;
  friend bool operator==(const HopKey&, const HopKey&) = default;
};

// What a generation keeps for life, so that no re-planning can change its ids.
struct RoutePin {
  Sha256Digest model_fp;
  std::string quant;
  std::string numerics_id;
  std::vector<Sha256Digest> layer_digests;  // [layer_count]
};

struct RoutePlan {
  std::vector<forward::HopRef> hops;
  forward::CacheNamespace cache_namespace;
  std::string numerics_id;
  std::vector<Sha256Digest> layer_digests;  // [layer_count]
  bool stateless = false;                   // some hop cannot cache, or none was wanted
  bool checkpoints = false;                 // every hop saves and restores them
  std::vector<HopStateBytes> state_bytes;   // [hops]
  uint32_t hidden_size = 0;
  uint32_t context_length = 0;  // tokens; the least of the hops'

  RoutePin Pin() const {
    return {cache_namespace.model_fp, cache_namespace.quant, numerics_id, layer_digests};
  }
};

struct RouteRequest {
  std::vector<HopKey> avoid;    // suspects: taken only when no route does without them
  std::optional<RoutePin> pin;  // none: any
  bool stateless = false;
  std::string tenant_salt;  // of stored state; empty: none
};

// The router's own copy of the model (tokenizer, config) that every shard must have too.
struct ModelIdentity {
  uint32_t layer_count = 0;
  Sha256Digest config_digest;
  Sha256Digest tokenizer_digest;
};

// UNAVAILABLE: nobody serves some layers (named), or only with other facts than `request.pin`;
// worth waiting for. FAILED_PRECONDITION MODEL_MISMATCH or PROTOCOL_MISMATCH: all layers are
// served, but by shards that do not fit together, or not with `own` (both sides shown).
absl::StatusOr<RoutePlan> PlanRoute(absl::Span<const ShardFacts> shards, const ModelIdentity& own,
                                    const RouteRequest& request);

// Why a shard cannot be part of any route of this router (both sides shown); empty: it can.
std::string WhyUnusable(const ShardFacts& shard, const ModelIdentity& own);

// Layers that no usable shard serves, in order.
std::vector<LayerRange> MissingLayers(absl::Span<const ShardFacts> shards,
                                      const ModelIdentity& own);

}  // namespace kvmesh::router

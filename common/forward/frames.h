// The frames and answers of a Forward stream as checked, plain values: what the pure cores of shard
// and router speak. common/rpc/forward_codec.h turns protos into these, checking every limit on the
// way, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layer_range.h"

namespace kvmesh::forward {

// Steps of sampling with their neutral values; meaning and order in services/shard/core/sampler.h.
struct SamplingOptions {
  double temperature = 0;  // < 1e-5: greedy
  uint32_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias;  // token id, added value
  uint64_t seed = 0;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
};

struct HopRef {
  std::string address;
  InstanceId instance;
  LayerRange layers;
  friend bool operator==(const HopRef&, const HopRef&) = default;
};

struct CacheNamespace {
  Sha256Digest model_fp;
  std::string quant;
  Sha256Digest ctx_params_hash;
  friend bool operator==(const CacheNamespace&, const CacheNamespace&) = default;
};

// A stored slab and where to read it.
struct SlabRef {
  std::string store_address;
  Sha256Digest key;
  LayerRange layers;
  WriteId write_id;
  Sha256Digest tokens_sha256;
  friend bool operator==(const SlabRef&, const SlabRef&) = default;
};

// State that one hop loads before its first frame.
struct HopRestore {
  uint32_t hop_index = 0;
  std::vector<SlabRef> slabs;  // together they cover the hop's layers; may overlap
  uint64_t tokens = 0;         // how many tokens' state
  uint32_t last_step = 0;
  friend bool operator==(const HopRestore&, const HopRestore&) = default;
};

// What a hop that saves and restores checkpoints lists among its features.
inline constexpr char kCheckpointsFeature[] = "checkpoints";

struct Open {
  SessionId session;
  SessionEpoch epoch{1};
  StreamAttempt attempt{1};
  std::vector<HopRef> hops;  // the receiving hop first
  uint32_t hop_index = 0;
  CacheNamespace cache_namespace;
  std::vector<std::string> required_features;
  std::vector<uint32_t> history;
  uint32_t prompt_tokens = 0;
  SamplingOptions sampling;
  std::vector<HopRestore> restore;         // of the hops that do not start from what they hold
  std::optional<uint64_t> reserve_tokens;  // none: a stateless route
  std::string tenant;
  std::string traceparent;
};

enum class CacheMode { kStateless, kPrefill, kDecode };

struct Compute {
  CacheMode cache_mode = CacheMode::kStateless;
  std::optional<uint64_t> past_len;
  LayerRange layers;
  uint32_t step = 0;
  std::vector<uint32_t> tokens;
  std::string hidden;  // [tokens, hidden_size] f32 little-endian; empty at a first hop
  std::optional<uint64_t> prefix_digest;
  bool want_logits = false;
};

enum class SaveReason { kCold, kContinued, kFinish, kEvict, kShutdown };

struct Save {
  uint64_t at_tokens = 0;
  WriteId write_id;
  SaveReason reason = SaveReason::kCold;
  std::vector<std::pair<uint32_t, std::string>> targets;  // hop index, store address
};

enum class Disposition { kDrop, kKeep };

struct Close {
  Disposition disposition = Disposition::kDrop;
};

using Frame = std::variant<Open, Compute, Save, Close>;

struct Opened {
  uint32_t hop_index = 0;
  uint64_t held = 0;
  uint32_t last_step = 0;
  bool restored = false;
  SessionEpoch epoch{0};  // of the state held; 0 for none
};

struct Ack {
  uint32_t step = 0;
  uint64_t past_len = 0;
};

struct TokenLogprob {
  uint32_t token_id = 0;
  double logprob = 0;
  std::string piece;
};

struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

struct Output {
  uint32_t step = 0;
  std::optional<uint32_t> token_id;
  std::string piece;
  std::optional<Logprobs> logprobs;
  bool finished = false;
  uint64_t held = 0;
};

struct SaveState {
  enum class State { kStarted, kDone, kDropped };
  uint32_t hop_index = 0;
  WriteId write_id;
  State state = State::kStarted;
  std::string cause;
};

using Answer = std::variant<Opened, Ack, Output, SaveState>;

}  // namespace kvmesh::forward

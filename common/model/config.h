// What a model is: every number that the engine, the planner and the arithmetic of sizes need, read
// once from config.json or from GGUF metadata and checked against the tensors. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvmesh::model {

enum class Architecture { kLlama, kQwen2 };
absl::string_view ArchitectureName(Architecture architecture);  // "llama", "qwen2"
// Nullopt: not supported. The names are those of GGUF's general.architecture and of config.json's
// model_type.
std::optional<Architecture> ArchitectureByName(absl::string_view name);

// What config.json and GGUF metadata may say at most.
inline constexpr uint64_t kWidthMax = 1 << 20;  // hidden and intermediate size, heads, head_dim
inline constexpr uint64_t kVocabMax = 1 << 24;
inline constexpr uint64_t kContextMax = uint64_t{1} << 31;

// The kind of state a layer keeps (DESIGN §4).
enum class LayerKind { kKeyValue, kSlidingWindow, kRecurrent };

enum class RopeScaling { kNone, kLinear, kLlama3 };

// Rotary position embedding, half layout: element i is paired with i + dims/2.
struct RopeConfig {
  double theta = 10000.0;
  uint32_t dims = 0;  // rotated elements of a head
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 0;  // tokens
  // GGUF rope_freqs.weight: frequency i is divided by freq_factors[i]. Empty or dims/2 long.
  std::vector<float> freq_factors;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  uint32_t layer_count = 0;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  uint32_t head_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_dim = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // tokens
  double rms_norm_eps = 1e-5;
  bool tied_embedding = false;  // the output matrix is the embedding
  bool qkv_bias = false;
  RopeConfig rope;
  std::vector<LayerKind> layer_kinds;  // [layer_count], by absolute index
  // generation_config.json wins over config.json; GGUF: eos, eot and eom ids. Sorted, unique.
  std::vector<uint32_t> eos_token_ids;
  std::optional<uint32_t> bos_token_id;
};

// Checks shared by both readers; the keys are named in messages.
// InvalidArgument: kv_head_count does not divide head_count; rope.dims is 0, odd or above head_dim.
// head_count and kv_head_count are at least 1.
absl::Status CheckHeads(const ModelConfig& config, absl::string_view kv_heads_key,
                        absl::string_view head_dim_key);
// hidden_size / head_count, where no key gives head_dim. InvalidArgument: it does not divide.
absl::StatusOr<uint32_t> DerivedHeadDim(const ModelConfig& config, absl::string_view hidden_key,
                                        absl::string_view heads_key);

}  // namespace kvmesh::model

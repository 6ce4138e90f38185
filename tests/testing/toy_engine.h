// A model for tests whose state in every layer is a hash of all tokens in order: a wrong, missing
// or doubled token, a state of other tokens or a row at a wrong position changes every later id.
// The same for any split into layer ranges and any chunking, and cheap.
//
// Its vocabulary is printable ASCII, one character a token, so that text and ids map one to one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/job.h"

namespace kvmesh::testing {

inline constexpr uint32_t kToyVocabSize = 96;  // ' ' to '~', then the end of sequence
inline constexpr uint32_t kToyEos = 95;
inline constexpr uint32_t kToyHiddenSize = 8;
inline constexpr char kToyQuant[] = "toy/kv-toy";
inline constexpr char kToyNumericsId[] = "toy-1";

struct ToyOptions {
  uint32_t layer_count = 6;
  LayerRange layers{0, 6};
  uint32_t context_length = 4096;  // tokens
  bool supports_kv_cache = true;
  uint32_t block_tokens = 16;
  uint64_t bytes_per_token = 64;  // of one layer
  // Called on the compute thread before every layer of every item; may block it.
  std::function<void(uint32_t layer)> on_layer;
};

class ToyEngine final : public shard::Engine {
 public:
  explicit ToyEngine(ToyOptions options);

  const shard::EngineInfo& info() const override { return info_; }
  shard::SessionState NewState() const override;
  void Step(absl::Span<shard::StepItem> batch) override;
  absl::StatusOr<std::vector<float>> Logits(absl::Span<const float> hidden) override;

 private:
  absl::Status RunItem(shard::StepItem& item);
  absl::StatusOr<std::vector<uint64_t>> InputRows(const shard::StepItem& item) const;

  const ToyOptions options_;
  shard::EngineInfo info_;
};

class ToyVocabulary final : public shard::Vocabulary {
 public:
  std::string Piece(uint32_t id) const override;
  std::string KeyBytes(uint32_t id) const override;
  bool IsEndOfSequence(uint32_t id) const override { return id == kToyEos; }
};

std::string ToyText(absl::Span<const uint32_t> ids);
// InvalidArgument: a byte outside the vocabulary.
absl::StatusOr<std::vector<uint32_t>> ToyIds(absl::string_view text);

// What a generation that nothing disturbs gives, computed without any of the mesh.
std::vector<uint32_t> ToyGenerate(const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                  const forward::SamplingOptions& sampling = {},
                                  uint32_t layer_count = 6);

}  // namespace kvmesh::testing

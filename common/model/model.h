// One model on disk: a Hugging Face directory or one .gguf file, mapped read-only. Opening checks
// the container, the configuration and that every tensor of the wanted layers is there with the
// right type and shape; the bytes of other layers are never read. Immutable after Open;
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/model/config.h"
#include "common/model/weights.h"

namespace kvmesh::model {

// `--stage i/n`: the i-th (from 0) of n contiguous near-equal ranges over layer_count layers;
// earlier stages take the remainder. InvalidArgument: n is 0, i >= n, or n > layer_count.
absl::StatusOr<LayerRange> StageRange(uint32_t stage, uint32_t stage_count, uint32_t layer_count);

enum class WeightRole {
  kEmbedding,   // [vocab, hidden]
  kOutputNorm,  // [hidden]
  kOutput,      // [vocab, hidden]; the embedding itself when tied
  kAttnNorm,
  kAttnQ,
  kAttnK,
  kAttnV,
  kAttnO,
  kAttnQBias,
  kAttnKBias,
  kAttnVBias,
  kFfnNorm,
  kFfnGate,
  kFfnUp,
  kFfnDown,
};

// SHA-256 per part, over the names, types, shapes and all bytes (DESIGN §9).
struct ModelDigests {
  LayerRange range;
  std::vector<Sha256Digest> layers;  // of `range`, in order
  Sha256Digest embedding;            // zero: a shard with `range` does not have it
  Sha256Digest head;                 // likewise
  Sha256Digest config;
  Sha256Digest tokenizer;
};

// model_fp: SHA-256 over the digests of all layers in order, embedding, head, config, tokenizer.
Sha256Digest ModelFingerprint(const std::vector<Sha256Digest>& all_layers,
                              const Sha256Digest& embedding, const Sha256Digest& head,
                              const Sha256Digest& config, const Sha256Digest& tokenizer);

class Model {
 public:
  virtual ~Model() = default;

  // `path`: a directory with config.json, or a .gguf file.
  // NotFound: nothing there. InvalidArgument: malformed, contradictory (file, tensor or key, and
  // reason are named). Unimplemented: an architecture, rope scaling, quantisation or activation
  // that is not supported, by name.
  static absl::StatusOr<std::unique_ptr<Model>> Open(const std::string& path);

  virtual const ModelConfig& config() const = 0;

  // The tensor that plays `role` (in `layer`, absolute, for the per-layer roles). Biases that the
  // architecture lacks: NotFound.
  virtual absl::StatusOr<Tensor> Find(WeightRole role, uint32_t layer = 0) const = 0;

  // Lets go of the memory that reading `tensor` has mapped: it is read again when touched.
  virtual void ReleasePages(const Tensor& tensor) const = 0;

  // Bytes of all tensors of `range`, with the embedding if it begins at 0 and norm and head if it
  // ends at the end (a tied matrix once).
  virtual uint64_t WeightBytes(LayerRange range) const = 0;

  // Weight types that occur in the model's matrices, most bytes first, as "q4_1+q8_0" or "bf16".
  virtual std::string weight_types() const = 0;

  // Digests of the layers of `range` and of the four common parts. Cached beside the model (or,
  // when that folder is read-only, under the user's cache directory) by (path, size, mtime_ns,
  // inode) of every file involved; a cache that cannot be written is only a slower start.
  virtual absl::StatusOr<ModelDigests> Digests(LayerRange range) const = 0;

  // The path given to Open.
  virtual const std::string& path() const = 0;
};

}  // namespace kvmesh::model

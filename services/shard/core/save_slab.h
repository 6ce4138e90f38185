// Makes the slab of a snapshot: text and keys out of the ids, cut points, regions in canonical
// form. Pure, but for memory: a slab may be as large as a session's state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/slab/writer.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/job.h"

namespace kvmesh::shard {

// What all slabs of one shard have in common.
struct SlabFacts {
  LayerRange layers;
  uint32_t model_layers = 0;  // of the whole model
  slab::DType kv_dtype = slab::DType::kF32;
  uint8_t quant_bits = 0;       // of a weight, as `quant` names them; 0: not known
  uint32_t context_length = 0;  // tokens
  // All layers of the model hold keys and values, by its config: every shard decides alike.
  bool can_be_cut = false;
  uint32_t min_tokens = 512;
  uint32_t align_tokens = 256;
  std::string hostname;
  std::string writer_version;
};
SlabFacts SlabFactsOf(const EngineInfo& info);

// The text that ids spell (DESIGN §5.1). `ends`, if not null, gets the text's length after each.
std::string TextOf(absl::Span<const uint32_t> ids, const Vocabulary& vocabulary,
                   std::vector<uint32_t>* ends);

// Whether the ids spell exactly `text`. Stops where they no longer do, whatever they would make.
bool Spell(absl::Span<const uint32_t> ids, absl::string_view text, const Vocabulary& vocabulary);

// The content key of the text that ids spell.
Sha256Digest KeyOf(const forward::CacheNamespace& cache_namespace, absl::Span<const uint32_t> ids,
                   const Vocabulary& vocabulary);

// A slab but for its state and its write_id: what a reservation asks for.
struct SlabDraft {
  slab::SlabMeta meta;
  Sha256Digest key;
  uint64_t file_bytes = 0;  // exactly, once it is built
};

// InvalidArgument: the text is longer than a slab may hold.
absl::StatusOr<SlabDraft> DraftSlab(const StateSnapshot& snapshot, forward::SaveReason reason,
                                    const SlabFacts& facts, const Vocabulary& vocabulary);

// A slab in memory. Not moved once made: the image has views of the regions.
class BuiltSlab {
 public:
  BuiltSlab(slab::SlabImage image, std::vector<std::unique_ptr<uint8_t[]>> regions)
      : image_(std::move(image)), regions_(std::move(regions)) {}
  BuiltSlab(const BuiltSlab&) = delete;
  BuiltSlab& operator=(const BuiltSlab&) = delete;
  const slab::SlabImage& image() const { return image_; }

 private:
  slab::SlabImage image_;
  std::vector<std::unique_ptr<uint8_t[]>> regions_;
};

// Copies the snapshot's state, layer by layer, into canonical regions: the one copy between state
// and wire. Each layer of the snapshot is freed as soon as it is copied.
// Cancelled: `cancel` was set meanwhile. ResourceExhausted: no memory. InvalidArgument: what no
// reader would take.
absl::StatusOr<std::shared_ptr<const BuiltSlab>> BuildSlab(SlabDraft draft, StateSnapshot snapshot,
                                                           const WriteId& write_id, uint64_t now_s,
                                                           const SlabFacts& facts,
                                                           const std::atomic<bool>& cancel);

}  // namespace kvmesh::shard

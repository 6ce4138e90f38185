// Which bytes of a slab a Get moves, and in which chunks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/slab/pieces.h"

namespace kvmesh::blob {

inline constexpr uint64_t kChunkBytesMax = 1 << 20;
inline constexpr uint32_t kSelectedLayersMax = 4096;

// One layer, or its first `tokens` tokens (0: all).
struct LayerSelection {
  uint32_t layer = 0;
  uint32_t tokens = 0;
};

struct Selection {
  enum class Kind { kWhole, kMeta, kLayers };
  Kind kind = Kind::kWhole;
  std::vector<LayerSelection> layers;  // with kLayers
};

// A run of bytes of the file.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// One message: bytes of the head or of the trailer, or whole pieces that follow one another.
struct Chunk {
  ByteRange bytes;
  std::vector<slab::Piece> pieces;  // empty: head or trailer
};

struct TransferPlan {
  std::vector<ByteRange> ranges;  // what the chunks cover, in their order, neighbours joined
  std::vector<Chunk> chunks;
};

// Head (with the meta section), the pieces selected, trailer; of the whole slab also the padding.
// InvalidArgument, FailedPrecondition: as of slab::PiecesOf.
absl::StatusOr<TransferPlan> PlanTransfer(const slab::SlabMeta& meta, const Selection& selection);

}  // namespace kvmesh::blob

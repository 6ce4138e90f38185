// The pieces of a payload: at most kPieceBytes each, none across two layers, each with a CRC of its
// own. What a range read moves, so that store and shard both verify it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/slab/format.h"

namespace kvmesh::slab {

struct Piece {
  uint64_t offset = 0;  // from the file's start
  uint32_t length = 0;
  uint32_t crc32c = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// All of them, in the order of the file; they cover the payload.
std::vector<Piece> AllPieces(const SlabMeta& meta);

// Those of one layer that hold its first `tokens` tokens: of K, then of V, none twice. All of the
// layer's when `tokens` is the slab's token count.
// InvalidArgument: a layer outside the slab, or more tokens than it has.
// FailedPrecondition: fewer tokens of a state that cannot be cut.
absl::StatusOr<std::vector<Piece>> PiecesOf(const SlabMeta& meta, uint32_t layer, uint32_t tokens);

// DataLoss: `bytes` are not those of the piece.
absl::Status CheckPiece(const Piece& piece, absl::string_view bytes);

}  // namespace kvmesh::slab

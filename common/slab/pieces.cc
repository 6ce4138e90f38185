#include "common/slab/pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/slab/crc32c.h"

namespace kvmesh::slab {
namespace {

Piece PieceAt(const SlabMeta& meta, const Region& region, size_t index) {
  const uint64_t at = index * kPieceBytes;
  return {.offset = meta.payload_offset() + region.offset + at,
          .length = static_cast<uint32_t>(std::min(kPieceBytes, region.padded_length() - at)),
          .crc32c = region.piece_crcs[index]};
}

// Appends the pieces from index `begin` on that cover the bytes up to `end` of the region.
size_t AppendUpTo(const SlabMeta& meta, const Region& region, size_t begin, uint64_t end,
                  std::vector<Piece>* pieces) {
  size_t index = begin;
  for (; index * kPieceBytes < end; ++index) pieces->push_back(PieceAt(meta, region, index));
  return index;
}

}  // namespace

std::vector<Piece> AllPieces(const SlabMeta& meta) {
  std::vector<Piece> pieces;
  for (const Region& region : meta.regions) {
    AppendUpTo(meta, region, 0, region.padded_length(), &pieces);
  }
  return pieces;
}

absl::StatusOr<std::vector<Piece>> PiecesOf(const SlabMeta& meta, uint32_t layer, uint32_t tokens) {
  const LayerRange& layers = meta.header.layers;
  if (layer < layers.begin || layer >= layers.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer ", layer, " is not in the slab's ", layers.begin, ":", layers.end));
  }
  const uint32_t token_count = meta.header.token_count;
  if (tokens == 0 || tokens > token_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens is ", tokens, "; the slab has ", token_count));
  }
  const Region& region = meta.regions[layer - layers.begin];
  std::vector<Piece> pieces;
  if (tokens == token_count) {
    AppendUpTo(meta, region, 0, region.padded_length(), &pieces);
    return pieces;
  }
  if (!region.can_be_cut()) {
    return absl::FailedPreconditionError(absl::StrCat("the state of layer ", layer, " (",
                                                      ToString(region.kind), ") cannot be cut to ",
                                                      tokens, " tokens"));
  }
  const uint64_t wanted = tokens * region.row_bytes(token_count);
  const uint64_t values = region.length / 2;  // where V begins
  const size_t next = AppendUpTo(meta, region, 0, wanted, &pieces);
  AppendUpTo(meta, region, std::max<size_t>(next, values / kPieceBytes), values + wanted, &pieces);
  return pieces;
}

absl::Status CheckPiece(const Piece& piece, absl::string_view bytes) {
  if (bytes.size() == piece.length && Crc32c(bytes) == piece.crc32c) return absl::OkStatus();
  return Defect(defect::kCorrupt,
                absl::StrCat("the CRC of the piece at byte ", piece.offset, " is wrong"));
}

}  // namespace kvmesh::slab

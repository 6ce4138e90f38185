#include "services/blob/core/transfer_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace kvmesh::blob {
namespace {

void AddRange(ByteRange range, TransferPlan* plan) {
  if (!plan->ranges.empty()) {
    ByteRange& last = plan->ranges.back();
    if (last.offset + last.length == range.offset) {
      last.length += range.length;
      return;
    }
  }
  plan->ranges.push_back(range);
}

void AddBytes(uint64_t offset, uint64_t length, TransferPlan* plan) {
  AddRange({.offset = offset, .length = length}, plan);
  while (length > 0) {
    const uint64_t count = std::min(length, kChunkBytesMax);
    plan->chunks.push_back({.bytes = {.offset = offset, .length = count}});
    offset += count;
    length -= count;
  }
}

void AddPieces(const std::vector<slab::Piece>& pieces, TransferPlan* plan) {
  for (const slab::Piece& piece : pieces) {
    AddRange({.offset = piece.offset, .length = piece.length}, plan);
    Chunk* last = plan->chunks.empty() ? nullptr : &plan->chunks.back();
    if (last != nullptr && !last->pieces.empty() &&
        last->bytes.offset + last->bytes.length == piece.offset &&
        last->bytes.length + piece.length <= kChunkBytesMax) {
      last->bytes.length += piece.length;
      last->pieces.push_back(piece);
      continue;
    }
    plan->chunks.push_back(
        {.bytes = {.offset = piece.offset, .length = piece.length}, .pieces = {piece}});
  }
}

}  // namespace

absl::StatusOr<TransferPlan> PlanTransfer(const slab::SlabMeta& meta, const Selection& selection) {
  TransferPlan plan;
  const bool whole = selection.kind == Selection::Kind::kWhole;
  AddBytes(0, whole ? meta.payload_offset() : slab::kHeadBytes + meta.meta_bytes, &plan);
  if (whole) AddPieces(slab::AllPieces(meta), &plan);
  if (selection.kind == Selection::Kind::kLayers) {
    if (selection.layers.empty() || selection.layers.size() > kSelectedLayersMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(selection.layers.size(), " layers are selected; 1 to ", kSelectedLayersMax));
    }
    for (const LayerSelection& selected : selection.layers) {
      const uint32_t tokens = selected.tokens == 0 ? meta.header.token_count : selected.tokens;
      KVMESH_ASSIGN_OR_RETURN(const std::vector<slab::Piece> pieces,
                              slab::PiecesOf(meta, selected.layer, tokens));
      AddPieces(pieces, &plan);
    }
  }
  AddBytes(meta.file_bytes() - slab::kTrailerBytes, slab::kTrailerBytes, &plan);
  return plan;
}

}  // namespace kvmesh::blob

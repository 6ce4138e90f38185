// A get: head and trailer from memory, verified when it opened; pieces from the medium, each
// verified before it is given on.
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "services/blob/tiers/slab_store.h"

namespace kvmesh::blob {

OpenGet::~OpenGet() {
  source_.reset();
  store_.EndRead(name_);
  store_.EndTransfer();
}

absl::Status OpenGet::Load(const Selection& selection) {
  KVMESH_ASSIGN_OR_RETURN(source_, store_.tier_->Open(name_));
  KVMESH_ASSIGN_OR_RETURN(envelope_, slab::ReadEnvelope(*source_));
  KVMESH_RETURN_IF_ERROR(CheckName(envelope_.meta, name_));
  KVMESH_ASSIGN_OR_RETURN(plan_, PlanTransfer(envelope_.meta, selection));
  return absl::OkStatus();
}

uint64_t OpenGet::next_bytes() const {
  return next_ < plan_.chunks.size() ? plan_.chunks[next_].bytes.length : 0;
}

absl::Status OpenGet::ReadNext(absl::Span<char> out) {
  absl::Status read = ReadChunk(plan_.chunks[next_], out);
  if (absl::IsDataLoss(read)) store_.Quarantine(name_, read);
  if (read.ok()) ++next_;
  return read;
}

absl::Status OpenGet::ReadChunk(const Chunk& chunk, absl::Span<char> out) const {
  const ByteRange& range = chunk.bytes;
  if (chunk.pieces.empty()) {
    const bool head = range.offset < envelope_.meta.payload_offset();
    const std::string& bytes = head ? envelope_.head : envelope_.trailer;
    std::memcpy(out.data(), bytes.data() + (head ? range.offset : 0), out.size());
    return absl::OkStatus();
  }
  KVMESH_RETURN_IF_ERROR(source_->ReadAt(range.offset, out));
  for (const slab::Piece& piece : chunk.pieces) {
    const absl::string_view bytes(out.data() + (piece.offset - range.offset), piece.length);
    KVMESH_RETURN_IF_ERROR(slab::CheckPiece(piece, bytes));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh::blob

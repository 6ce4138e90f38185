#include "common/slab/reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace kvmesh::slab {
namespace {

absl::StatusOr<std::string> Read(const ByteSource& source, uint64_t offset, uint64_t length) {
  std::string bytes(length, '\0');
  KVMESH_RETURN_IF_ERROR(source.ReadAt(offset, absl::MakeSpan(bytes)));
  return bytes;
}

}  // namespace

absl::Status MemorySource::ReadAt(uint64_t offset, absl::Span<char> out) const {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return absl::OutOfRangeError(
        absl::StrCat("bytes ", offset, "+", out.size(), " of ", bytes_.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return absl::OkStatus();
}

absl::StatusOr<Envelope> ReadEnvelope(const ByteSource& source) {
  const uint64_t size = source.size();
  Envelope envelope;
  KVMESH_ASSIGN_OR_RETURN(envelope.head, Read(source, 0, std::min(size, kHeadBytes)));
  KVMESH_ASSIGN_OR_RETURN(const Head head, ParseHead(envelope.head, size));
  // The file has a place for what follows: ParseHead compared the lengths with its size.
  envelope.head.resize(AlignUp(kHeadBytes + head.meta_bytes));
  KVMESH_RETURN_IF_ERROR(
      source.ReadAt(kHeadBytes, absl::MakeSpan(envelope.head).subspan(kHeadBytes)));
  const absl::string_view bytes = envelope.head;
  KVMESH_ASSIGN_OR_RETURN(envelope.meta,
                          ParseMeta(head, bytes.substr(kHeadBytes, head.meta_bytes)));
  KVMESH_RETURN_IF_ERROR(CheckPadding(bytes.substr(kHeadBytes + head.meta_bytes)));
  KVMESH_ASSIGN_OR_RETURN(envelope.trailer, Read(source, size - kTrailerBytes, kTrailerBytes));
  KVMESH_RETURN_IF_ERROR(CheckTrailer(envelope.head, envelope.trailer, envelope.meta));
  return envelope;
}

absl::StatusOr<SlabReader> SlabReader::Open(const ByteSource& source) {
  KVMESH_ASSIGN_OR_RETURN(Envelope envelope, ReadEnvelope(source));
  return SlabReader(source, std::move(envelope.meta));
}

absl::Status SlabReader::ReadPiece(const Piece& piece, std::string* out) const {
  out->resize(piece.length);
  KVMESH_RETURN_IF_ERROR(source_->ReadAt(piece.offset, absl::MakeSpan(*out)));
  return CheckPiece(piece, *out);
}

absl::StatusOr<std::string> SlabReader::ReadLayer(uint32_t layer) const {
  return ReadLayerPrefix(layer, meta_.header.token_count);
}

absl::StatusOr<std::string> SlabReader::ReadLayerPrefix(uint32_t layer, uint32_t tokens) const {
  KVMESH_ASSIGN_OR_RETURN(const std::vector<Piece> pieces, PiecesOf(meta_, layer, tokens));
  const Region& region = meta_.regions[layer - meta_.header.layers.begin];
  const uint64_t begin = meta_.payload_offset() + region.offset;
  // Where the wanted bytes lie in the region: all of it, or the first rows of K and of V.
  const bool whole = tokens == meta_.header.token_count;
  const uint64_t half = whole ? region.length : tokens * region.row_bytes(meta_.header.token_count);
  const uint64_t values = region.length / 2;
  std::string out(whole ? half : 2 * half, '\0');
  std::string bytes;
  const auto copy_overlap = [&](uint64_t from, uint64_t piece_at, uint64_t to) {
    const uint64_t first = std::max(from, piece_at);
    const uint64_t last = std::min(from + half, piece_at + bytes.size());
    if (first < last) {
      std::memcpy(&out[to + first - from], &bytes[first - piece_at], last - first);
    }
  };
  for (const Piece& piece : pieces) {
    KVMESH_RETURN_IF_ERROR(ReadPiece(piece, &bytes));
    copy_overlap(0, piece.offset - begin, 0);
    if (!whole) copy_overlap(values, piece.offset - begin, half);
  }
  return out;
}

absl::Status SlabReader::VerifyPayload() const {
  std::string bytes;
  for (const Piece& piece : AllPieces(meta_)) KVMESH_RETURN_IF_ERROR(ReadPiece(piece, &bytes));
  return absl::OkStatus();
}

}  // namespace kvmesh::slab

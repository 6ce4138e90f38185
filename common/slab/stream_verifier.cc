#include "common/slab/stream_verifier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/slab/crc32c.h"

namespace kvmesh::slab {

absl::Status SlabStreamVerifier::Append(absl::string_view bytes) {
  while (status_.ok() && !bytes.empty()) status_ = Step(&bytes);
  return status_;
}

absl::Status SlabStreamVerifier::Finish() const {
  if (!status_.ok()) return status_;
  if (part_ == Part::kDone) return absl::OkStatus();
  return Defect(defect::kTruncated, "the slab ended early");
}

absl::Status SlabStreamVerifier::Step(absl::string_view* bytes) {
  switch (part_) {
    case Part::kHead:
      return Fill(kHeadBytes, bytes, &head_bytes_) ? EndHead() : absl::OkStatus();
    case Part::kTlvs:
      return Fill(head_->meta_bytes, bytes, &buffer_) ? EndTlvs() : absl::OkStatus();
    case Part::kPadding: {
      const uint64_t count = std::min<uint64_t>(padding_left_, bytes->size());
      KVMESH_RETURN_IF_ERROR(CheckPadding(bytes->substr(0, count)));
      bytes->remove_prefix(count);
      padding_left_ -= count;
      if (padding_left_ == 0) StartPayload();
      return absl::OkStatus();
    }
    case Part::kPayload:
      return TakePayload(bytes);
    case Part::kTrailer:
      if (!Fill(kTrailerBytes, bytes, &buffer_)) return absl::OkStatus();
      part_ = Part::kDone;
      return CheckTrailer(head_bytes_, buffer_, *meta_);
    case Part::kDone:
      return Defect(defect::kTruncated, "bytes behind the trailer");
  }
  return absl::InternalError("unreachable");
}

absl::Status SlabStreamVerifier::EndHead() {
  KVMESH_ASSIGN_OR_RETURN(head_, ParseHead(head_bytes_, file_bytes_));
  part_ = Part::kTlvs;
  // A meta section without TLVs lacks the required ones; no byte of it will come to say so.
  return head_->meta_bytes > 0 ? absl::OkStatus() : EndTlvs();
}

absl::Status SlabStreamVerifier::EndTlvs() {
  KVMESH_ASSIGN_OR_RETURN(meta_, ParseMeta(*head_, buffer_));
  buffer_.clear();
  buffer_.shrink_to_fit();
  pieces_ = AllPieces(*meta_);
  padding_left_ = meta_->payload_offset() - kHeadBytes - meta_->meta_bytes;
  part_ = Part::kPadding;
  if (padding_left_ == 0) StartPayload();
  return absl::OkStatus();
}

void SlabStreamVerifier::StartPayload() {
  part_ = pieces_.empty() ? Part::kTrailer : Part::kPayload;
}

absl::Status SlabStreamVerifier::TakePayload(absl::string_view* bytes) {
  const Piece& piece = pieces_[piece_];
  const size_t count = std::min<size_t>(piece.length - piece_taken_, bytes->size());
  piece_crc_ = ExtendCrc32c(piece_crc_, bytes->substr(0, count));
  piece_taken_ += static_cast<uint32_t>(count);
  bytes->remove_prefix(count);
  if (piece_taken_ < piece.length) return absl::OkStatus();
  if (piece_crc_ != piece.crc32c) {
    return Defect(defect::kCorrupt,
                  absl::StrCat("the CRC of the piece at byte ", piece.offset, " is wrong"));
  }
  piece_crc_ = 0;
  piece_taken_ = 0;
  if (++piece_ == pieces_.size()) part_ = Part::kTrailer;
  return absl::OkStatus();
}

bool SlabStreamVerifier::Fill(uint64_t wanted, absl::string_view* bytes, std::string* buffer) {
  const size_t count = std::min<size_t>(wanted - buffer->size(), bytes->size());
  buffer->append(bytes->data(), count);
  bytes->remove_prefix(count);
  return buffer->size() == wanted;
}

}  // namespace kvmesh::slab

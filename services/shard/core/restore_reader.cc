#include "services/shard/core/restore_reader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/forward/key_namespace.h"
#include "common/slab/crc32c.h"
#include "services/shard/core/row_bytes.h"
#include "services/shard/core/save_slab.h"

namespace kvmesh::shard {
namespace {

RestoreFault FaultOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kFailedPrecondition:
      return RestoreFault::kWrongSlab;
    case absl::StatusCode::kOutOfRange:
      return RestoreFault::kTokensDiffer;
    case absl::StatusCode::kUnimplemented:
      return RestoreFault::kWrongState;
    case absl::StatusCode::kResourceExhausted:
      return RestoreFault::kNoMemory;
    default:
      return RestoreFault::kCorrupt;
  }
}

absl::Status WrongSlab(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("the slab's ", what, " is not what was named"));
}

// Copies the part of [offset, offset + bytes) that lies in [begin, begin + out.size()).
void CopyOverlap(uint64_t offset, absl::string_view bytes, uint64_t begin,
                 absl::Span<uint8_t> out) {
  const uint64_t from = std::max(offset, begin);
  const uint64_t to = std::min(offset + bytes.size(), begin + out.size());
  if (from >= to) return;
  std::memcpy(out.data() + (from - begin), bytes.data() + (from - offset), to - from);
}

}  // namespace

std::optional<RestoreFailure> RestoreReader::Append(absl::string_view bytes) {
  absl::Status status;
  while (!failure_.has_value() && status.ok() && !bytes.empty()) status = Step(&bytes);
  return Settle(status);
}

std::optional<RestoreFailure> RestoreReader::Finish() {
  return Settle(part_ == Part::kDone ? absl::OkStatus() : absl::DataLossError("bytes are missing"));
}

std::optional<RestoreFailure> RestoreReader::Settle(const absl::Status& status) {
  if (!failure_.has_value() && !status.ok()) {
    failure_ = RestoreFailure{.fault = FaultOf(status.code()),
                              .detail = std::string(status.message()),
                              .slab = want_.read.slab};
  }
  return failure_;
}

std::vector<float> RestoreReader::LastRow(uint32_t end) const {
  // A row of more tokens than are wanted is not that of the last one wanted.
  if (!meta_.has_value() || !meta_->last_output.has_value() ||
      meta_->last_output->dtype != slab::DType::kF32 || meta_->header.layers.end != end ||
      meta_->header.token_count != want_.tokens.size()) {
    return {};
  }
  std::vector<float> row;
  FloatsOf(meta_->last_output->bytes, &row);
  return row;
}

absl::Status RestoreReader::Step(absl::string_view* bytes) {
  switch (part_) {
    case Part::kHead:
      return Fill(slab::kHeadBytes, bytes, &head_bytes_) ? EndHead() : absl::OkStatus();
    case Part::kTlvs:
      return Fill(head_->meta_bytes, bytes, &buffer_) ? EndTlvs() : absl::OkStatus();
    case Part::kPieces:
      return TakePiece(bytes);
    case Part::kTrailer:
      if (!Fill(slab::kTrailerBytes, bytes, &buffer_)) return absl::OkStatus();
      part_ = Part::kDone;
      return slab::CheckTrailer(head_bytes_, buffer_, *meta_);
    case Part::kDone:
      return absl::DataLossError("bytes behind the trailer");
  }
  return absl::OkStatus();
}

absl::Status RestoreReader::EndHead() {
  KVMESH_ASSIGN_OR_RETURN(head_, slab::ParseHead(head_bytes_, file_bytes_));
  part_ = Part::kTlvs;
  // A meta section without TLVs lacks the required ones; no byte of it will come to say so.
  return head_->meta_bytes > 0 ? absl::OkStatus() : EndTlvs();
}

absl::Status RestoreReader::EndTlvs() {
  KVMESH_ASSIGN_OR_RETURN(meta_, slab::ParseMeta(*head_, buffer_));
  buffer_.clear();
  buffer_.shrink_to_fit();
  KVMESH_RETURN_IF_ERROR(CheckIdentity());
  KVMESH_RETURN_IF_ERROR(CheckTokens());
  for (const uint32_t layer : want_.read.layers) {
    KVMESH_RETURN_IF_ERROR(CheckState(layer));
    auto pieces = slab::PiecesOf(*meta_, layer, static_cast<uint32_t>(want_.tokens.size()));
    if (!pieces.ok()) return absl::UnimplementedError(pieces.status().message());
    pieces_.insert(pieces_.end(), pieces->begin(), pieces->end());
    layers_.push_back({.number = layer, .pieces_end = pieces_.size()});
  }
  part_ = Part::kPieces;
  return absl::OkStatus();
}

absl::Status RestoreReader::CheckIdentity() const {
  const forward::SlabRef& wanted = want_.read.slab;
  if (meta_->key_namespace != forward::KeyNamespaceOf(want_.cache_namespace))
    return WrongSlab("namespace");
  if (meta_->key != wanted.key) return WrongSlab("key");
  if (meta_->header.layers != wanted.layers) return WrongSlab("layer range");
  if (meta_->write_id != wanted.write_id) return WrongSlab("write_id");
  if (meta_->tokens_sha256 != wanted.tokens_sha256) return WrongSlab("tokens_sha256");
  return absl::OkStatus();
}

absl::Status RestoreReader::CheckTokens() const {
  const auto ids = absl::MakeConstSpan(meta_->token_ids);
  if (ids.size() < want_.tokens.size()) {
    return absl::OutOfRangeError(
        absl::StrCat("the slab has ", ids.size(), " tokens; ", want_.tokens.size(), " are wanted"));
  }
  if (ids.first(want_.tokens.size()) != want_.tokens) {
    return absl::OutOfRangeError("the slab's ids are not those of the history");
  }
  // Only who has the vocabulary can tell that ids and text belong together.
  if (!Spell(ids, meta_->text, want_.vocabulary)) {
    return absl::DataLossError("the slab's ids do not spell its text");
  }
  return absl::OkStatus();
}

absl::Status RestoreReader::CheckState(uint32_t layer) const {
  const LayerState& own = *want_.state[layer];
  const slab::Region& region = meta_->regions[layer - meta_->header.layers.begin];
  if (own.kind() != model::LayerKind::kKeyValue || region.kind != slab::StateKind::kKeyValue) {
    return absl::UnimplementedError(absl::StrCat("layer ", layer, " is no key/value layer"));
  }
  if (region.dtype != want_.kv_dtype) {
    return absl::UnimplementedError(absl::StrCat("layer ", layer, " is ", ToString(region.dtype),
                                                 " in the slab, ", ToString(want_.kv_dtype),
                                                 " here"));
  }
  const uint64_t row_bytes = region.row_bytes(meta_->header.token_count);
  if (row_bytes != own.row_bytes()) {
    return absl::UnimplementedError(absl::StrCat("a row of layer ", layer, " has ", row_bytes,
                                                 " bytes in the slab, ", own.row_bytes(), " here"));
  }
  return absl::OkStatus();
}

absl::Status RestoreReader::TakePiece(absl::string_view* bytes) {
  const slab::Piece& piece = pieces_[piece_];
  const absl::string_view part =
      bytes->substr(0, std::min<size_t>(piece.length - piece_taken_, bytes->size()));
  const uint64_t half = want_.tokens.size() * want_.state[layers_[layer_].number]->row_bytes();
  if (keys_.size() != half) {
    try {
      keys_.resize(half);
      values_.resize(half);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", 2 * half, " bytes"));
    }
  }
  piece_crc_ = slab::ExtendCrc32c(piece_crc_, part);
  CopyWanted(piece.offset + piece_taken_, part);
  piece_taken_ += static_cast<uint32_t>(part.size());
  bytes->remove_prefix(part.size());
  if (piece_taken_ < piece.length) return absl::OkStatus();
  if (piece_crc_ != piece.crc32c) {
    return absl::DataLossError(
        absl::StrCat("the CRC of the piece at byte ", piece.offset, " is wrong"));
  }
  piece_crc_ = 0;
  piece_taken_ = 0;
  return ++piece_ == layers_[layer_].pieces_end ? EndLayer() : absl::OkStatus();
}

void RestoreReader::CopyWanted(uint64_t file_offset, absl::string_view bytes) {
  const slab::Region& region = meta_->regions[layers_[layer_].number - meta_->header.layers.begin];
  const uint64_t offset = file_offset - meta_->payload_offset() - region.offset;
  CopyOverlap(offset, bytes, 0, absl::MakeSpan(keys_));
  CopyOverlap(offset, bytes, region.length / 2, absl::MakeSpan(values_));
}

absl::Status RestoreReader::EndLayer() {
  KVMESH_RETURN_IF_ERROR(want_.state[layers_[layer_].number]->AppendRows(keys_, values_));
  if (++layer_ == layers_.size()) {
    part_ = Part::kTrailer;
    keys_ = {};
    values_ = {};
  }
  return absl::OkStatus();
}

bool RestoreReader::Fill(uint64_t wanted, absl::string_view* bytes, std::string* buffer) {
  const size_t count = std::min<size_t>(wanted - buffer->size(), bytes->size());
  buffer->append(bytes->data(), count);
  bytes->remove_prefix(count);
  return buffer->size() == wanted;
}

}  // namespace kvmesh::shard

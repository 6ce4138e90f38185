#include "common/slab/writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/slab/crc32c.h"
#include "common/slab/cut_points.h"

namespace kvmesh::slab {
namespace {

constexpr char kZeros[kAlignment] = {};

// Takes a region's bytes in order and closes a piece whenever it is full.
class PieceCrcs {
 public:
  explicit PieceCrcs(Region* region) : region_(region) {}

  void Take(absl::string_view bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min<size_t>(kPieceBytes - taken_, bytes.size());
      crc_ = ExtendCrc32c(crc_, bytes.substr(0, count));
      bytes.remove_prefix(count);
      taken_ += count;
      if (taken_ == kPieceBytes) Close();
    }
  }
  void Close() {
    if (taken_ == 0) return;
    region_->piece_crcs.push_back(crc_);
    region_->crc32c = CombineCrc32c(region_->crc32c, crc_, taken_);
    crc_ = 0;
    taken_ = 0;
  }

 private:
  Region* region_;
  uint32_t crc_ = 0;
  uint64_t taken_ = 0;
};

absl::Status Refused(const absl::Status& defect) {
  return absl::InvalidArgumentError(defect.message());
}

}  // namespace

SlabImage::SlabImage(std::string head, std::vector<absl::string_view> payload, SlabMeta meta)
    : head_(std::move(head)), payload_(std::move(payload)), meta_(std::move(meta)) {
  trailer_ = EncodeTrailer(head_, meta_);
}

std::vector<absl::string_view> SlabImage::Parts() const {
  std::vector<absl::string_view> parts;
  parts.reserve(payload_.size() + 2);
  parts.emplace_back(head_);
  parts.insert(parts.end(), payload_.begin(), payload_.end());
  parts.emplace_back(trailer_);
  return parts;
}

std::string SlabImage::ToString() const {
  std::string bytes;
  bytes.reserve(size());
  for (absl::string_view part : Parts()) bytes.append(part.data(), part.size());
  return bytes;
}

absl::StatusOr<SlabWriter> SlabWriter::Create(SlabMeta meta) {
  meta.header.token_count = static_cast<uint32_t>(meta.token_ids.size());
  meta.header.payload_bytes = 0;
  meta.regions.clear();
  meta.tokens_sha256 = TokensSha256(meta.token_ids);
  meta.key = ContentKey(meta.key_namespace, meta.text);
  meta.block_hash = BlockHash(meta.key_namespace, meta.text);
  // Sorted, because the keys come from one pass over the text; wrong positions are refused there.
  const auto inside = [&](const CutPoint& p) { return p.text_bytes < meta.text.size(); };
  const auto before = [](const CutPoint& a, const CutPoint& b) {
    return a.text_bytes < b.text_bytes;
  };
  if (!std::all_of(meta.cut_points.begin(), meta.cut_points.end(), inside) ||
      !std::is_sorted(meta.cut_points.begin(), meta.cut_points.end(), before)) {
    return absl::InvalidArgumentError("cut points are out of order or behind the end");
  }
  FillKeys(meta.key_namespace, meta.text, &meta.cut_points);
  return SlabWriter(std::move(meta));
}

absl::Status SlabWriter::AddRegion(StateKind kind, DType dtype, uint32_t first_position,
                                   absl::Span<const absl::string_view> parts) {
  if (meta_.regions.size() >= meta_.header.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a region more than the ", meta_.header.layers.size(), " layers"));
  }
  Region region{.kind = kind,
                .dtype = dtype,
                .first_position = first_position,
                .offset = meta_.header.payload_bytes};
  PieceCrcs crcs(&region);
  for (absl::string_view part : parts) {
    region.length += part.size();
    crcs.Take(part);
    if (!part.empty()) payload_.push_back(part);
  }
  const absl::string_view padding(kZeros, region.padded_length() - region.length);
  crcs.Take(padding);
  crcs.Close();
  if (!padding.empty()) payload_.push_back(padding);
  meta_.header.payload_bytes += region.padded_length();
  meta_.regions.push_back(std::move(region));
  return absl::OkStatus();
}

absl::StatusOr<SlabImage> SlabWriter::Finish() {
  if (meta_.regions.size() != meta_.header.layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(meta_.regions.size(), " regions for ", meta_.header.layers.size(), " layers"));
  }
  std::string tlvs = EncodeTlvs(meta_);
  if (tlvs.size() > kMetaBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a meta section of ", tlvs.size(), " bytes"));
  }
  meta_.meta_bytes = static_cast<uint32_t>(tlvs.size());
  std::string head = EncodeHead(
      {.header = meta_.header, .meta_bytes = meta_.meta_bytes, .meta_crc32c = Crc32c(tlvs)});
  // What we write is what we would read: one set of rules, the reader's.
  const absl::StatusOr<Head> parsed = ParseHead(head, meta_.file_bytes());
  if (!parsed.ok()) return Refused(parsed.status());
  if (absl::StatusOr<SlabMeta> sound = ParseMeta(*parsed, tlvs); !sound.ok()) {
    return Refused(sound.status());
  }
  head += tlvs;
  head.resize(meta_.payload_offset(), '\0');
  return SlabImage(std::move(head), std::move(payload_), std::move(meta_));
}

}  // namespace kvmesh::slab

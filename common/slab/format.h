// KVC version 2: the slab, one file with the state of one layer range for one text.
// docs/kvc-format.md has the byte layout.
//
// What is parsed here came from a file or from the wire and is not trusted: every length and offset
// is bounded by the file's size before it is used. Every function that refuses bytes answers
// DataLoss with one of the reasons below (ErrorInfo) and a message that says what is wrong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/slab/content_key.h"

namespace kvmesh::slab {

inline constexpr uint8_t kVersion = 2;
inline constexpr uint64_t kHeaderBytes = 48;
inline constexpr uint64_t kHeadBytes = 56;  // the header and the meta section's length and CRC
inline constexpr uint64_t kTrailerBytes = 24;
inline constexpr uint64_t kAlignment = 4096;
inline constexpr uint64_t kPieceBytes = 256 << 10;
inline constexpr uint64_t kMetaBytesMax = 32 << 20;
inline constexpr uint64_t kTextBytesMax = 16 << 20;  // escapes included
inline constexpr uint64_t kLabelBytesMax = 1024;     // host, writer, detail, quant
inline constexpr uint64_t kPayloadBytesMax = 1ULL << 42;

constexpr uint64_t AlignUp(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Why bytes are no sound slab.
namespace defect {
inline constexpr absl::string_view kForeign = "NOT_A_SLAB";        // another kind of file
inline constexpr absl::string_view kVersion = "SLAB_VERSION";      // KVC, but not version 2
inline constexpr absl::string_view kTruncated = "SLAB_TRUNCATED";  // shorter or longer than it says
inline constexpr absl::string_view kCorrupt = "SLAB_CORRUPT";      // a CRC or a rule is broken
}  // namespace defect

absl::Status Defect(absl::string_view defect, absl::string_view message);

enum class SaveReason : uint8_t { kCold = 1, kContinued, kFinish, kEvict, kShutdown };
enum class StateKind : uint8_t { kKeyValue = 1, kSlidingWindow, kRecurrent };
enum class DType : uint8_t { kF32 = 1, kF16, kBF16 };

absl::string_view ToString(SaveReason reason);
absl::string_view ToString(StateKind kind);
absl::string_view ToString(DType dtype);
uint64_t BytesOf(DType dtype);

struct Header {
  uint8_t quant_bits = 0;
  SaveReason reason = SaveReason::kCold;
  uint32_t token_count = 0;
  uint32_t hit_count = 0;  // outside every CRC, as is last_used_time_s
  uint32_t context_size = 0;
  LayerRange layers;
  uint64_t creation_time_s = 0;   // since the epoch
  uint64_t last_used_time_s = 0;  // since the epoch
  uint64_t payload_bytes = 0;
};

// A shorter length at which the slab serves too.
struct CutPoint {
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  uint64_t block_hash = 0;
  uint32_t tail_hash = 0;  // derived from the text; not in the file
  Sha256Digest key;
  friend bool operator==(const CutPoint&, const CutPoint&) = default;
};

// The state of one layer. Key/value kinds hold K [rows, kv_heads, head_dim], then V likewise.
struct Region {
  StateKind kind = StateKind::kKeyValue;
  DType dtype = DType::kF32;
  uint32_t first_position = 0;  // of its first row; of a recurrent state the token count
  uint64_t offset = 0;          // from the payload's start
  uint64_t length = 0;          // bytes of state, without the padding to kAlignment
  uint32_t crc32c = 0;          // over the region, padding included
  std::vector<uint32_t> piece_crcs;

  uint64_t padded_length() const { return AlignUp(length); }
  uint32_t rows(uint32_t token_count) const { return token_count - first_position; }
  // Bytes of one row of K, which are those of one row of V.
  uint64_t row_bytes(uint32_t token_count) const { return length / 2 / rows(token_count); }
  // Whether the state of fewer tokens is the first rows of this one.
  bool can_be_cut() const { return kind != StateKind::kRecurrent && first_position == 0; }
};

// The hidden row after the range's last layer, at its last token.
struct OutputRow {
  DType dtype = DType::kF32;
  std::string bytes;
  friend bool operator==(const OutputRow&, const OutputRow&) = default;
};

// Header and meta section.
struct SlabMeta {
  Header header;
  uint32_t meta_bytes = 0;  // of the TLVs
  KeyNamespace key_namespace;
  std::string hostname;
  std::string writer_version;
  std::string reason_detail;
  std::vector<uint32_t> token_ids;
  std::string text;
  std::optional<OutputRow> last_output;
  std::vector<Region> regions;  // one a layer, in layer order
  uint64_t block_hash = 0;
  Sha256Digest key;
  Sha256Digest tokens_sha256;
  WriteId write_id;
  std::vector<CutPoint> cut_points;  // the inner ones, ascending; the end is no member
  uint32_t model_layers = 0;         // of the whole model; 0: the slab does not say

  uint64_t payload_offset() const { return AlignUp(kHeadBytes + meta_bytes); }
  uint64_t file_bytes() const { return payload_offset() + header.payload_bytes + kTrailerBytes; }
  // The payload's CRC as the layer table implies it.
  uint32_t payload_crc32c() const;
};

// What the first kHeadBytes say.
struct Head {
  Header header;
  uint32_t meta_bytes = 0;
  uint32_t meta_crc32c = 0;
};

// `bytes`: the first kHeadBytes (or the whole file when it is shorter) of a file of `file_bytes`.
absl::StatusOr<Head> ParseHead(absl::string_view bytes, uint64_t file_bytes);
std::string EncodeHead(const Head& head);

// `head` as parsed, `tlvs` the meta_bytes that follow it. Checks the CRC and that everything that
// can be recomputed from the slab is what it says: key, block hash, digest of the ids, cut points,
// region sizes, CRCs of regions from those of their pieces.
absl::StatusOr<SlabMeta> ParseMeta(const Head& head, absl::string_view tlvs);
// The TLVs. `meta` is filled but for meta_bytes.
std::string EncodeTlvs(const SlabMeta& meta);

// `head`: the first kHeadBytes. `trailer`: the last kTrailerBytes.
absl::Status CheckTrailer(absl::string_view head, absl::string_view trailer, const SlabMeta& meta);
std::string EncodeTrailer(absl::string_view head, const SlabMeta& meta);

// Padding is zero.
absl::Status CheckPadding(absl::string_view padding);

// Where a store rewrites use in place, and the bytes it writes there.
inline constexpr uint64_t kHitCountOffset = 12;
inline constexpr uint64_t kLastUsedOffset = 32;
std::string EncodeHitCount(uint32_t hit_count);
std::string EncodeLastUsed(uint64_t last_used_time_s);

}  // namespace kvmesh::slab

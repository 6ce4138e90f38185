#include "common/slab/format.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/slab/crc32c.h"
#include "common/slab/wire.h"

namespace kvmesh::slab {
namespace {

constexpr char kMagic[] = "KVC";

// The header's bytes that lie inside the trailer's CRC: all but hit_count and last_used_time_s.
uint32_t ExtendOverHeader(uint32_t crc, absl::string_view head) {
  crc = ExtendCrc32c(crc, head.substr(0, 12));
  crc = ExtendCrc32c(crc, head.substr(16, 16));
  return ExtendCrc32c(crc, head.substr(40, 8));
}

absl::Status CheckMagic(absl::string_view bytes) {
  if (bytes.size() < 4 || bytes.substr(0, 3) != absl::string_view(kMagic, 3)) {
    return Defect(bytes.empty() ? defect::kTruncated : defect::kForeign,
                  bytes.empty() ? "the file is empty" : "it does not begin with KVC");
  }
  const auto version = wire::Get<uint8_t>(bytes, 3);
  if (version != kVersion) {
    return Defect(defect::kVersion, absl::StrCat("KVC version ", version, ", not ", kVersion));
  }
  if (bytes.size() < kHeadBytes) {
    return Defect(defect::kTruncated, absl::StrCat("ends after ", bytes.size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckHeader(const Header& header, uint8_t reason, uint16_t flags) {
  if (reason < 1 || reason > static_cast<uint8_t>(SaveReason::kShutdown)) {
    return Defect(defect::kCorrupt, absl::StrCat("save_reason ", reason));
  }
  if (flags != 0) return Defect(defect::kCorrupt, absl::StrCat("unknown flags ", flags));
  if (header.token_count == 0 || header.token_count > limits::kHistoryTokensMax) {
    return Defect(defect::kCorrupt, absl::StrCat("token_count ", header.token_count));
  }
  if (header.layers.begin >= header.layers.end || header.layers.end > limits::kLayersMax) {
    return Defect(defect::kCorrupt,
                  absl::StrCat("layers ", header.layers.begin, ":", header.layers.end));
  }
  return absl::OkStatus();
}

// The three lengths must add up to the file's, none of them being able to wrap.
absl::Status CheckLengths(const Head& head, uint64_t file_bytes) {
  if (head.meta_bytes > kMetaBytesMax) {
    return Defect(defect::kCorrupt, absl::StrCat("a meta section of ", head.meta_bytes, " bytes"));
  }
  if (head.header.payload_bytes > kPayloadBytesMax) {
    return Defect(defect::kCorrupt,
                  absl::StrCat("a payload of ", head.header.payload_bytes, " bytes"));
  }
  const uint64_t wanted =
      AlignUp(kHeadBytes + head.meta_bytes) + head.header.payload_bytes + kTrailerBytes;
  if (wanted != file_bytes) {
    return Defect(defect::kTruncated,
                  absl::StrCat("has ", file_bytes, " bytes, its header says ", wanted));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Defect(absl::string_view defect, absl::string_view message) {
  return WithErrorInfo(absl::DataLossError(message), ErrorInfo{.reason = std::string(defect)});
}

absl::string_view ToString(SaveReason reason) {
  static constexpr absl::string_view kNames[] = {"cold", "continued", "finish", "evict",
                                                 "shutdown"};
  return kNames[static_cast<size_t>(reason) - 1];
}

absl::string_view ToString(StateKind kind) {
  static constexpr absl::string_view kNames[] = {"key_value", "sliding_window", "recurrent"};
  return kNames[static_cast<size_t>(kind) - 1];
}

absl::string_view ToString(DType dtype) {
  static constexpr absl::string_view kNames[] = {"f32", "f16", "bf16"};
  return kNames[static_cast<size_t>(dtype) - 1];
}

uint64_t BytesOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

uint32_t SlabMeta::payload_crc32c() const {
  uint32_t crc = 0;
  for (const Region& region : regions) {
    crc = CombineCrc32c(crc, region.crc32c, region.padded_length());
  }
  return crc;
}

absl::StatusOr<Head> ParseHead(absl::string_view bytes, uint64_t file_bytes) {
  if (absl::Status magic = CheckMagic(bytes); !magic.ok()) return magic;
  Head head;
  Header& header = head.header;
  header.quant_bits = wire::Get<uint8_t>(bytes, 4);
  const auto reason = wire::Get<uint8_t>(bytes, 5);
  header.reason = static_cast<SaveReason>(reason);
  header.token_count = wire::Get<uint32_t>(bytes, 8);
  header.hit_count = wire::Get<uint32_t>(bytes, kHitCountOffset);
  header.context_size = wire::Get<uint32_t>(bytes, 16);
  header.layers = {.begin = wire::Get<uint16_t>(bytes, 20), .end = wire::Get<uint16_t>(bytes, 22)};
  header.creation_time_s = wire::Get<uint64_t>(bytes, 24);
  header.last_used_time_s = wire::Get<uint64_t>(bytes, kLastUsedOffset);
  header.payload_bytes = wire::Get<uint64_t>(bytes, 40);
  head.meta_bytes = wire::Get<uint32_t>(bytes, 48);
  head.meta_crc32c = wire::Get<uint32_t>(bytes, 52);
  if (absl::Status lengths = CheckLengths(head, file_bytes); !lengths.ok()) return lengths;
  const auto flags = wire::Get<uint16_t>(bytes, 6);
  if (absl::Status checked = CheckHeader(header, reason, flags); !checked.ok()) return checked;
  return head;
}

std::string EncodeHead(const Head& head) {
  const Header& header = head.header;
  std::string out(kMagic, 3);
  wire::Put<uint8_t>(kVersion, &out);
  wire::Put<uint8_t>(header.quant_bits, &out);
  wire::Put<uint8_t>(static_cast<uint8_t>(header.reason), &out);
  wire::Put<uint16_t>(0, &out);  // flags
  wire::Put<uint32_t>(header.token_count, &out);
  wire::Put<uint32_t>(header.hit_count, &out);
  wire::Put<uint32_t>(header.context_size, &out);
  wire::Put<uint16_t>(static_cast<uint16_t>(header.layers.begin), &out);
  wire::Put<uint16_t>(static_cast<uint16_t>(header.layers.end), &out);
  wire::Put<uint64_t>(header.creation_time_s, &out);
  wire::Put<uint64_t>(header.last_used_time_s, &out);
  wire::Put<uint64_t>(header.payload_bytes, &out);
  wire::Put<uint32_t>(head.meta_bytes, &out);
  wire::Put<uint32_t>(head.meta_crc32c, &out);
  return out;
}

absl::Status CheckTrailer(absl::string_view head, absl::string_view trailer, const SlabMeta& meta) {
  const auto payload_offset = wire::Get<uint64_t>(trailer, 0);
  const auto payload_length = wire::Get<uint64_t>(trailer, 8);
  const auto payload_crc = wire::Get<uint32_t>(trailer, 16);
  const auto own_crc = wire::Get<uint32_t>(trailer, 20);
  if (own_crc != ExtendOverHeader(Crc32c(trailer.substr(0, 20)), head)) {
    return Defect(defect::kCorrupt, "the CRC of trailer and header is wrong");
  }
  if (payload_offset != meta.payload_offset() || payload_length != meta.header.payload_bytes) {
    return Defect(
        defect::kCorrupt,
        absl::StrCat("the trailer puts the payload at ", payload_offset, "+", payload_length,
                     ", the header at ", meta.payload_offset(), "+", meta.header.payload_bytes));
  }
  if (payload_crc != meta.payload_crc32c()) {
    return Defect(defect::kCorrupt, "the payload's CRC is not that of its regions");
  }
  return absl::OkStatus();
}

std::string EncodeTrailer(absl::string_view head, const SlabMeta& meta) {
  std::string out;
  wire::Put<uint64_t>(meta.payload_offset(), &out);
  wire::Put<uint64_t>(meta.header.payload_bytes, &out);
  wire::Put<uint32_t>(meta.payload_crc32c(), &out);
  wire::Put<uint32_t>(ExtendOverHeader(Crc32c(out), head), &out);
  return out;
}

absl::Status CheckPadding(absl::string_view padding) {
  if (std::all_of(padding.begin(), padding.end(), [](char byte) { return byte == 0; })) {
    return absl::OkStatus();
  }
  return Defect(defect::kCorrupt, "the padding before the payload is not zero");
}

std::string EncodeHitCount(uint32_t hit_count) {
  std::string out;
  wire::Put<uint32_t>(hit_count, &out);
  return out;
}

std::string EncodeLastUsed(uint64_t last_used_time_s) {
  std::string out;
  wire::Put<uint64_t>(last_used_time_s, &out);
  return out;
}

}  // namespace kvmesh::slab

// The meta section: TLVs of SlabMeta, one row of a table a tag.
#include <algorithm>
#include <array>
#include <bitset>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/slab/crc32c.h"
#include "common/slab/cut_points.h"
#include "common/slab/format.h"
#include "common/slab/wire.h"

namespace kvmesh::slab {
namespace {

constexpr size_t kLayerEntryBytes = 26;
constexpr size_t kCutPointBytes = 48;
constexpr uint64_t kOutputRowBytesMax = 8 << 20;

absl::Status Corrupt(absl::string_view what) {
  return Defect(defect::kCorrupt, what);
}

absl::Status TakeString(absl::string_view value, uint64_t bytes_max, std::string* out) {
  if (value.size() > bytes_max) {
    return Corrupt(absl::StrCat("a string of ", value.size(), " bytes, at most ", bytes_max));
  }
  out->assign(value.data(), value.size());
  return absl::OkStatus();
}

template <typename Id>
absl::Status TakeId(absl::string_view value, Id* out) {
  auto id = Id::FromBytes(value, "value");
  if (!id.ok()) return Corrupt(id.status().message());
  *out = *id;
  return absl::OkStatus();
}

// ---- one function a tag: reads the value into `meta`

absl::Status ReadModelFp(absl::string_view value, SlabMeta* meta) {
  if (value.size() != Sha256Digest::kSize) return Corrupt("model_fp is not 32 bytes");
  return TakeString(value, value.size(), &meta->key_namespace.model_fp);
}

absl::Status ReadQuant(absl::string_view value, SlabMeta* meta) {
  if (value.empty()) return Corrupt("quant is empty");
  // It travels as text from here on.
  if (!std::all_of(value.begin(), value.end(), absl::ascii_isprint)) {
    return Corrupt("quant is not printable ASCII");
  }
  return TakeString(value, kLabelBytesMax, &meta->key_namespace.quant);
}

absl::Status ReadCtxParams(absl::string_view value, SlabMeta* meta) {
  if (value.size() != Sha256Digest::kSize) return Corrupt("ctx_params_hash is not 32 bytes");
  return TakeString(value, value.size(), &meta->key_namespace.ctx_params);
}

absl::Status ReadHostname(absl::string_view value, SlabMeta* meta) {
  return TakeString(value, kLabelBytesMax, &meta->hostname);
}

absl::Status ReadWriter(absl::string_view value, SlabMeta* meta) {
  return TakeString(value, kLabelBytesMax, &meta->writer_version);
}

absl::Status ReadDetail(absl::string_view value, SlabMeta* meta) {
  return TakeString(value, kLabelBytesMax, &meta->reason_detail);
}

absl::Status ReadTokenCount(absl::string_view value, SlabMeta* meta) {
  if (value.size() != 4 || wire::Get<uint32_t>(value, 0) != meta->header.token_count) {
    return Corrupt("the token count is not the header's");
  }
  return absl::OkStatus();
}

absl::Status ReadTokenIds(absl::string_view value, SlabMeta* meta) {
  if (value.size() != uint64_t{meta->header.token_count} * 4) {
    return Corrupt("there are not token_count token ids");
  }
  meta->token_ids.resize(meta->header.token_count);
  for (size_t i = 0; i < meta->token_ids.size(); ++i) {
    meta->token_ids[i] = wire::Get<uint32_t>(value, i * 4);
  }
  return absl::OkStatus();
}

absl::Status ReadText(absl::string_view value, SlabMeta* meta) {
  return TakeString(value, kTextBytesMax, &meta->text);
}

absl::StatusOr<DType> ReadDType(uint8_t value) {
  if (value < 1 || value > static_cast<uint8_t>(DType::kBF16)) {
    return Corrupt(absl::StrCat("unknown dtype ", value));
  }
  return static_cast<DType>(value);
}

absl::Status ReadOutputRow(absl::string_view value, SlabMeta* meta) {
  if (value.empty() || value.size() > kOutputRowBytesMax) return Corrupt("last output row's size");
  OutputRow row;
  KVMESH_ASSIGN_OR_RETURN(row.dtype, ReadDType(wire::Get<uint8_t>(value, 0)));
  row.bytes = std::string(value.substr(1));
  if (row.bytes.empty() || row.bytes.size() % BytesOf(row.dtype) != 0) {
    return Corrupt("the last output row is no whole number of values");
  }
  meta->last_output = std::move(row);
  return absl::OkStatus();
}

absl::Status ReadLayerTable(absl::string_view value, SlabMeta* meta) {
  if (value.size() != meta->header.layers.size() * kLayerEntryBytes) {
    return Corrupt("the layer table has not one entry a layer");
  }
  for (size_t at = 0; at < value.size(); at += kLayerEntryBytes) {
    Region region;
    const auto kind = wire::Get<uint8_t>(value, at);
    if (kind < 1 || kind > static_cast<uint8_t>(StateKind::kRecurrent)) {
      return Corrupt(absl::StrCat("unknown kind of state ", kind));
    }
    region.kind = static_cast<StateKind>(kind);
    KVMESH_ASSIGN_OR_RETURN(region.dtype, ReadDType(wire::Get<uint8_t>(value, at + 1)));
    region.first_position = wire::Get<uint32_t>(value, at + 2);
    region.offset = wire::Get<uint64_t>(value, at + 6);
    region.length = wire::Get<uint64_t>(value, at + 14);
    region.crc32c = wire::Get<uint32_t>(value, at + 22);
    meta->regions.push_back(std::move(region));
  }
  return absl::OkStatus();
}

absl::Status ReadBlockHash(absl::string_view value, SlabMeta* meta) {
  if (value.size() != 8) return Corrupt("the block hash is not 8 bytes");
  meta->block_hash = wire::Get<uint64_t>(value, 0);
  return absl::OkStatus();
}

absl::Status ReadKey(absl::string_view value, SlabMeta* meta) {
  return TakeId(value, &meta->key);
}

absl::Status ReadTokensDigest(absl::string_view value, SlabMeta* meta) {
  return TakeId(value, &meta->tokens_sha256);
}

absl::Status ReadWriteId(absl::string_view value, SlabMeta* meta) {
  return TakeId(value, &meta->write_id);
}

absl::Status ReadCutPoints(absl::string_view value, SlabMeta* meta) {
  if (value.size() % kCutPointBytes != 0) return Corrupt("half a cut point");
  for (size_t at = 0; at < value.size(); at += kCutPointBytes) {
    CutPoint point{.token_count = wire::Get<uint32_t>(value, at),
                   .text_bytes = wire::Get<uint32_t>(value, at + 4),
                   .block_hash = wire::Get<uint64_t>(value, at + 8)};
    KVMESH_RETURN_IF_ERROR(TakeId(value.substr(at + 16, Sha256Digest::kSize), &point.key));
    meta->cut_points.push_back(point);
  }
  return absl::OkStatus();
}

absl::Status ReadModelLayers(absl::string_view value, SlabMeta* meta) {
  if (value.size() != 4) return Corrupt("the model's number of layers is not 4 bytes");
  meta->model_layers = wire::Get<uint32_t>(value, 0);
  if (meta->model_layers >= meta->header.layers.end && meta->model_layers <= limits::kLayersMax) {
    return absl::OkStatus();
  }
  return Corrupt(absl::StrCat("a model of ", meta->model_layers, " layers; ",
                              meta->header.layers.end, " to ", limits::kLayersMax));
}

struct TagReader {
  bool required;
  absl::Status (*read)(absl::string_view value, SlabMeta* meta);
};

constexpr uint8_t kTagPieceCrcs = 0x12;  // read last: its shape is the layer table's
constexpr uint8_t kTagModelLayers = 0x13;
constexpr size_t kTags = 0x14;

// By tag. Those without a reader are skipped, as are all tags behind the table.
constexpr std::array<TagReader, kTags> kReaders = {{
    {false, nullptr},       {true, ReadModelFp},    {false, nullptr},    {true, ReadQuant},
    {true, ReadCtxParams},  {false, ReadHostname},  {false, ReadWriter}, {false, ReadDetail},
    {true, ReadTokenCount}, {true, ReadTokenIds},   {true, ReadText},    {false, ReadOutputRow},
    {true, ReadLayerTable}, {true, ReadBlockHash},  {true, ReadKey},     {true, ReadTokensDigest},
    {true, ReadWriteId},    {false, ReadCutPoints}, {true, nullptr},     {false, ReadModelLayers},
}};

absl::StatusOr<absl::string_view> ReadTlvs(absl::string_view tlvs, SlabMeta* meta) {
  std::bitset<256> seen;
  absl::string_view piece_crcs;
  wire::Cursor cursor(tlvs);
  while (!cursor.empty()) {
    const auto tag = cursor.Take<uint8_t>();
    const auto length = cursor.Take<uint32_t>();
    if (!tag || !length) return Corrupt("the meta section ends inside a TLV");
    const auto value = cursor.TakeBytes(*length);
    if (!value) return Corrupt(absl::StrCat("TLV ", *tag, " is longer than the meta section"));
    const bool known = *tag < kTags && (kReaders[*tag].required || kReaders[*tag].read != nullptr);
    if (!known) continue;
    if (seen[*tag]) return Corrupt(absl::StrCat("TLV ", *tag, " is there twice"));
    seen.set(*tag);
    if (*tag == kTagPieceCrcs) {
      piece_crcs = *value;
    } else {
      KVMESH_RETURN_IF_ERROR(kReaders[*tag].read(*value, meta));
    }
  }
  for (size_t tag = 0; tag < kTags; ++tag) {
    if (kReaders[tag].required && !seen[tag]) {
      return Corrupt(absl::StrCat("TLV ", tag, " is missing"));
    }
  }
  return piece_crcs;
}

// A region's size is what its kind has at this token count.
absl::Status CheckRegion(const Region& region, uint32_t token_count) {
  if (region.length % BytesOf(region.dtype) != 0) return Corrupt("half a value in a region");
  if (region.kind == StateKind::kRecurrent) {
    if (region.first_position == token_count && region.length > 0) return absl::OkStatus();
    return Corrupt("a recurrent state is not at the token count, or is empty");
  }
  if (region.first_position > token_count) return Corrupt("a region begins behind the last token");
  if (region.kind == StateKind::kKeyValue && region.first_position != 0) {
    return Corrupt("a key/value region does not begin at the first token");
  }
  const uint64_t rows = region.rows(token_count);
  if (rows == 0) {
    return region.length == 0 ? absl::OkStatus() : Corrupt("bytes in a region without rows");
  }
  if (region.length == 0 || region.length % (2 * rows * BytesOf(region.dtype)) != 0) {
    return Corrupt("a region is no whole number of rows of K and V");
  }
  return absl::OkStatus();
}

// Regions stand one behind another and fill the payload.
absl::Status CheckRegions(const SlabMeta& meta) {
  uint64_t offset = 0;
  for (const Region& region : meta.regions) {
    if (region.offset != offset) return Corrupt("a region does not follow the one before it");
    if (region.length > meta.header.payload_bytes - offset ||
        region.padded_length() > meta.header.payload_bytes - offset) {
      return Corrupt("a region ends behind the payload");
    }
    KVMESH_RETURN_IF_ERROR(CheckRegion(region, meta.header.token_count));
    offset += region.padded_length();
  }
  if (offset == meta.header.payload_bytes) return absl::OkStatus();
  return Corrupt("the payload is longer than its regions");
}

absl::Status ReadPieceCrcs(absl::string_view value, SlabMeta* meta) {
  wire::Cursor cursor(value);
  for (Region& region : meta->regions) {
    uint32_t whole = 0;
    for (uint64_t at = 0; at < region.padded_length(); at += kPieceBytes) {
      const auto crc = cursor.Take<uint32_t>();
      if (!crc) return Corrupt("there are fewer piece CRCs than pieces");
      region.piece_crcs.push_back(*crc);
      whole = CombineCrc32c(whole, *crc, std::min(kPieceBytes, region.padded_length() - at));
    }
    if (whole != region.crc32c) return Corrupt("a region's CRC is not that of its pieces");
  }
  if (!cursor.empty()) return Corrupt("there are more piece CRCs than pieces");
  return absl::OkStatus();
}

absl::Status CheckNames(const SlabMeta& meta) {
  if (meta.tokens_sha256 != TokensSha256(meta.token_ids)) {
    return Corrupt("tokens_sha256 is not that of the token ids");
  }
  if (meta.key != ContentKey(meta.key_namespace, meta.text)) {
    return Corrupt("the key is not that of namespace and text");
  }
  if (meta.block_hash != BlockHash(meta.key_namespace, meta.text)) {
    return Corrupt("the block hash is not that of namespace and text");
  }
  return CheckCutPoints(meta);
}

void PutTlv(uint8_t tag, absl::string_view value, std::string* out) {
  wire::Put<uint8_t>(tag, out);
  wire::Put<uint32_t>(static_cast<uint32_t>(value.size()), out);
  out->append(value.data(), value.size());
}

void PutLabel(uint8_t tag, const std::string& value, std::string* out) {
  if (!value.empty()) PutTlv(tag, value, out);
}

std::string LayerTable(const SlabMeta& meta) {
  std::string out;
  for (const Region& region : meta.regions) {
    wire::Put<uint8_t>(static_cast<uint8_t>(region.kind), &out);
    wire::Put<uint8_t>(static_cast<uint8_t>(region.dtype), &out);
    wire::Put<uint32_t>(region.first_position, &out);
    wire::Put<uint64_t>(region.offset, &out);
    wire::Put<uint64_t>(region.length, &out);
    wire::Put<uint32_t>(region.crc32c, &out);
  }
  return out;
}

std::string CutPointTable(const SlabMeta& meta) {
  std::string out;
  for (const CutPoint& point : meta.cut_points) {
    wire::Put<uint32_t>(point.token_count, &out);
    wire::Put<uint32_t>(point.text_bytes, &out);
    wire::Put<uint64_t>(point.block_hash, &out);
    out.append(std::string(point.key.bytes()));
  }
  return out;
}

}  // namespace

absl::StatusOr<SlabMeta> ParseMeta(const Head& head, absl::string_view tlvs) {
  if (tlvs.size() != head.meta_bytes || Crc32c(tlvs) != head.meta_crc32c) {
    return Corrupt("the CRC of the meta section is wrong");
  }
  SlabMeta meta;
  meta.header = head.header;
  meta.meta_bytes = head.meta_bytes;
  KVMESH_ASSIGN_OR_RETURN(const absl::string_view piece_crcs, ReadTlvs(tlvs, &meta));
  KVMESH_RETURN_IF_ERROR(CheckRegions(meta));
  KVMESH_RETURN_IF_ERROR(ReadPieceCrcs(piece_crcs, &meta));
  for (CutPoint& point : meta.cut_points) {
    point.tail_hash = TailHash(absl::string_view(meta.text).substr(0, point.text_bytes));
  }
  KVMESH_RETURN_IF_ERROR(CheckNames(meta));
  return meta;
}

std::string EncodeTlvs(const SlabMeta& meta) {
  std::string ids;
  for (uint32_t id : meta.token_ids) wire::Put<uint32_t>(id, &ids);
  std::string count;
  wire::Put<uint32_t>(meta.header.token_count, &count);
  std::string block_hash;
  wire::Put<uint64_t>(meta.block_hash, &block_hash);
  std::string pieces;
  for (const Region& region : meta.regions) {
    for (uint32_t crc : region.piece_crcs) wire::Put<uint32_t>(crc, &pieces);
  }

  std::string out;
  PutTlv(0x01, meta.key_namespace.model_fp, &out);
  PutTlv(0x03, meta.key_namespace.quant, &out);
  PutTlv(0x04, meta.key_namespace.ctx_params, &out);
  PutLabel(0x05, meta.hostname, &out);
  PutLabel(0x06, meta.writer_version, &out);
  PutLabel(0x07, meta.reason_detail, &out);
  PutTlv(0x08, count, &out);
  PutTlv(0x09, ids, &out);
  PutTlv(0x0A, meta.text, &out);
  if (meta.last_output) {
    std::string row(1, static_cast<char>(meta.last_output->dtype));
    PutTlv(0x0B, row + meta.last_output->bytes, &out);
  }
  PutTlv(0x0C, LayerTable(meta), &out);
  PutTlv(0x0D, block_hash, &out);
  PutTlv(0x0E, meta.key.bytes(), &out);
  PutTlv(0x0F, meta.tokens_sha256.bytes(), &out);
  PutTlv(0x10, meta.write_id.bytes(), &out);
  if (!meta.cut_points.empty()) PutTlv(0x11, CutPointTable(meta), &out);
  PutTlv(kTagPieceCrcs, pieces, &out);
  if (meta.model_layers != 0) {
    std::string layers;
    wire::Put<uint32_t>(meta.model_layers, &layers);
    PutTlv(kTagModelLayers, layers, &out);
  }
  return out;
}

}  // namespace kvmesh::slab

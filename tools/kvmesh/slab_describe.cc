#include "tools/kvmesh/slab_describe.h"

#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hex.h"

namespace kvmesh::cli {
namespace {

constexpr size_t kTextShown = 200;
constexpr size_t kIdsShown = 16;

Json RegionJson(const slab::SlabMeta& meta, size_t index) {
  const slab::Region& region = meta.regions[index];
  return {{"layer", meta.header.layers.begin + index},
          {"kind", std::string(slab::ToString(region.kind))},
          {"dtype", std::string(slab::ToString(region.dtype))},
          {"first_position", region.first_position},
          {"offset", meta.payload_offset() + region.offset},
          {"length", region.length},
          {"crc32c", absl::StrFormat("%08x", region.crc32c)},
          {"pieces", region.piece_crcs.size()}};
}

Json CutPointJson(const slab::CutPoint& point) {
  return {{"token_count", point.token_count},
          {"text_bytes", point.text_bytes},
          {"block_hash", absl::StrFormat("%016x", point.block_hash)},
          {"key", point.key.ToHex()}};
}

}  // namespace

Json DescribeSlab(const slab::SlabMeta& meta) {
  const slab::Header& header = meta.header;
  Json layers = Json::array();
  for (size_t i = 0; i < meta.regions.size(); ++i) layers.push_back(RegionJson(meta, i));
  Json cuts = Json::array();
  for (const slab::CutPoint& point : meta.cut_points) cuts.push_back(CutPointJson(point));
  return {{"version", slab::kVersion},
          {"key", meta.key.ToHex()},
          {"layers", absl::StrCat(header.layers.begin, ":", header.layers.end)},
          {"write_id", meta.write_id.ToHex()},
          {"tokens_sha256", meta.tokens_sha256.ToHex()},
          {"token_count", header.token_count},
          {"text_bytes", meta.text.size()},
          {"text_hex", HexEncode(meta.text)},
          {"token_ids", meta.token_ids},
          {"size_bytes", meta.file_bytes()},
          {"meta_bytes", meta.meta_bytes},
          {"payload_offset", meta.payload_offset()},
          {"payload_bytes", header.payload_bytes},
          {"payload_crc32c", absl::StrFormat("%08x", meta.payload_crc32c())},
          {"save_reason", std::string(slab::ToString(header.reason))},
          {"reason_detail", meta.reason_detail},
          {"quant_bits", header.quant_bits},
          {"context_size", header.context_size},
          {"hit_count", header.hit_count},
          {"creation_time_s", header.creation_time_s},
          {"last_used_time_s", header.last_used_time_s},
          {"model_fp", HexEncode(meta.key_namespace.model_fp)},
          {"quant", meta.key_namespace.quant},
          {"ctx_params_hash", HexEncode(meta.key_namespace.ctx_params)},
          {"block_hash", absl::StrFormat("%016x", meta.block_hash)},
          {"hostname", meta.hostname},
          {"writer_version", meta.writer_version},
          {"last_output_bytes", meta.last_output ? meta.last_output->bytes.size() : 0},
          {"cut_points", cuts},
          {"layer_table", layers}};
}

void PrintSlab(const slab::SlabMeta& meta) {
  const Json described = DescribeSlab(meta);
  for (const auto& [name, value] : described.items()) {
    if (value.is_array() || name == "text_hex") continue;
    std::printf(
        "%-18s %s\n", name.c_str(),
        value.is_string() ? absl::CEscape(value.get<std::string>()).c_str() : value.dump().c_str());
  }
  std::printf("%-18s \"%s\"%s\n", "text", absl::CEscape(meta.text.substr(0, kTextShown)).c_str(),
              meta.text.size() > kTextShown ? " …" : "");
  std::string ids;
  for (size_t i = 0; i < std::min(kIdsShown, meta.token_ids.size()); ++i) {
    absl::StrAppend(&ids, i > 0 ? " " : "", meta.token_ids[i]);
  }
  std::printf("%-18s %s%s\n", "token_ids", ids.c_str(),
              meta.token_ids.size() > kIdsShown ? " …" : "");
  for (const Json& cut : described["cut_points"]) {
    std::printf("%-18s %lu tokens, %lu bytes, key %s\n", "cut_point",
                cut["token_count"].get<uint64_t>(), cut["text_bytes"].get<uint64_t>(),
                cut["key"].get<std::string>().c_str());
  }
  std::printf("\n%5s %-15s %-5s %8s %12s %12s %8s %7s\n", "LAYER", "KIND", "DTYPE", "FIRST",
              "OFFSET", "LENGTH", "CRC32C", "PIECES");
  for (const Json& layer : described["layer_table"]) {
    std::printf("%5lu %-15s %-5s %8lu %12lu %12lu %8s %7lu\n", layer["layer"].get<uint64_t>(),
                layer["kind"].get<std::string>().c_str(), layer["dtype"].get<std::string>().c_str(),
                layer["first_position"].get<uint64_t>(), layer["offset"].get<uint64_t>(),
                layer["length"].get<uint64_t>(), layer["crc32c"].get<std::string>().c_str(),
                layer["pieces"].get<uint64_t>());
  }
}

}  // namespace kvmesh::cli

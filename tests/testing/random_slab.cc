#include "tests/testing/random_slab.h"

#include <cstdio>
#include <cstdlib>

#include "common/slab/cut_points.h"

namespace kvmesh::testing {
namespace {

using slab::DType;
using slab::StateKind;

std::string RandomText(uint64_t length, std::mt19937_64* random) {
  std::string bytes(length, '\0');
  for (size_t i = 0; i < length; i += 8) {
    const uint64_t word = (*random)();
    for (size_t k = i; k < std::min<size_t>(i + 8, length); ++k) {
      bytes[k] = static_cast<char>(word >> (8 * (k - i)));
    }
  }
  return bytes;
}

// A broken helper must not look like a broken product.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "random slab: %s\n", value.status().ToString().c_str());
  std::abort();
}

}  // namespace

slab::SlabMeta RandomMeta(uint64_t seed, LayerRange layers, uint32_t token_count) {
  std::mt19937_64 random(seed);
  slab::SlabMeta meta;
  meta.header.reason = slab::SaveReason::kCold;
  meta.header.quant_bits = 16;
  meta.header.context_size = 4096;
  meta.header.layers = layers;
  meta.header.creation_time_s = 1700000000;
  meta.header.last_used_time_s = 1700000000 + seed % 1000;
  meta.key_namespace = {.model_fp = RandomText(32, &random),
                        .quant = "w=f16;kv=f16",
                        .ctx_params = RandomText(32, &random)};
  meta.hostname = "host-a";
  meta.writer_version = "0.1.0";
  for (uint32_t i = 0; i < token_count; ++i) {
    meta.token_ids.push_back(static_cast<uint32_t>(random() % 50000));
    // Two bytes a token, every fourth token ends inside a character of two.
    meta.text += i % 4 == 3 ? "a\xC3" : i % 4 == 0 && i > 0 ? "\xA9 " : "xy";
  }
  const std::string id = RandomText(16, &random);
  meta.write_id = Must(WriteId::FromBytes(id, "write_id"));
  return meta;
}

RandomSlab MakeRandomSlab(const RandomSlabOptions& options) {
  std::mt19937_64 random(options.seed * 7919);
  RandomSlab made;
  slab::SlabMeta meta = RandomMeta(options.seed, options.layers, options.token_count);
  if (options.last_output) {
    meta.last_output = slab::OutputRow{.dtype = DType::kF32, .bytes = RandomText(64, &random)};
  }
  if (!options.mixed_kinds) {
    std::vector<uint32_t> ends;
    for (uint32_t i = 1; i <= options.token_count; ++i) ends.push_back(2 * i);
    meta.cut_points = slab::ChooseCutPoints(meta.key_namespace, meta.text, ends,
                                            options.align_tokens, options.align_tokens);
  }
  slab::SlabWriter writer = Must(slab::SlabWriter::Create(std::move(meta)));
  made.layers.reserve(options.layers.size());
  for (uint32_t i = 0; i < options.layers.size(); ++i) {
    const auto kind =
        options.mixed_kinds ? static_cast<StateKind>(1 + i % 3) : StateKind::kKeyValue;
    const auto dtype = static_cast<DType>(1 + (i + options.seed) % 3);
    uint32_t first = 0;
    uint64_t bytes = 0;
    if (kind == StateKind::kRecurrent) {
      first = options.token_count;
      bytes = 4ULL * (100 + random() % 3000);
    } else {
      const uint32_t kept = std::min(options.token_count, options.window - 1);
      if (kind == StateKind::kSlidingWindow) first = options.token_count - kept;
      bytes = 2ULL * (options.token_count - first) * options.row_values * slab::BytesOf(dtype);
    }
    made.layers.push_back(RandomText(bytes, &random));
    const absl::string_view state = made.layers.back();
    const size_t cut = state.empty() ? 0 : random() % state.size();
    const absl::Status added =
        writer.AddRegion(kind, dtype, first, {state.substr(0, cut), state.substr(cut)});
    if (!added.ok()) std::abort();
  }
  const slab::SlabImage image = Must(writer.Finish());
  made.bytes = image.ToString();
  made.meta = image.meta();
  return made;
}

RandomSlab MakeSlabOfSize(uint64_t seed, uint64_t payload_bytes) {
  constexpr uint32_t kTokens = 64;
  return MakeRandomSlab({.seed = seed * 3,
                         .layers = {0, 1},
                         .token_count = kTokens,
                         .row_values = static_cast<uint32_t>(payload_bytes / (2 * kTokens * 4)),
                         .last_output = false});
}

RandomSlab WithWriteId(const RandomSlab& slab, const WriteId& write_id) {
  slab::SlabMeta meta = slab.meta;
  meta.write_id = write_id;
  slab::SlabWriter writer = Must(slab::SlabWriter::Create(std::move(meta)));
  for (size_t i = 0; i < slab.layers.size(); ++i) {
    const slab::Region& region = slab.meta.regions[i];
    const absl::Status added =
        writer.AddRegion(region.kind, region.dtype, region.first_position, {slab.layers[i]});
    if (!added.ok()) std::abort();
  }
  const slab::SlabImage image = Must(writer.Finish());
  return {.layers = slab.layers, .bytes = image.ToString(), .meta = image.meta()};
}

}  // namespace kvmesh::testing

// Small values for tests of the arbiter: everything is named by a small number, and facts that
// belong together agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/meta/core/arbiter.h"

namespace kvmesh::meta::testing {

template <typename Id>
Id IdOf(uint32_t number) {
  Id id;
  for (size_t i = 0; i < 4; ++i)
    id.mutable_data()[i] = static_cast<uint8_t>(number >> (24 - 8 * i));
  id.mutable_data()[Id::kSize - 1] = 1;
  return id;
}
template <typename Id>
uint32_t NumberOf(const Id& id) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(id.bytes()[i]);
  return number;
}

// A namespace's model has 2 + number % 3 layers.
inline slab::KeyNamespace NamespaceOf(uint32_t number) {
  return {.model_fp = std::string(32, static_cast<char>('A' + number)),
          .quant = "f16",
          .ctx_params = std::string(32, 'c')};
}
inline uint32_t LayersOf(uint32_t name_space) {
  return 2 + name_space % 3;
}

// A key belongs to namespace key % 2.
inline Sha256Digest KeyOf(uint32_t key) {
  return IdOf<Sha256Digest>(key);
}
inline uint32_t NamespaceOfKey(uint32_t key) {
  return key % 2;
}

struct SlabSpec {
  uint32_t key = 0;
  uint32_t tokenisation = 0;
  LayerRange layers;
  uint32_t write = 0;
  uint32_t pages = 1;
  uint32_t bytes_variant = 0;  // other bytes under the same name
  uint32_t cut_points = 0;     // a set of bits: which of three inner ones it lists
  bool says_layers = true;
  bool inside_character = false;
  absl::Duration idle;
};

inline SlabFacts FactsOf(const SlabSpec& spec) {
  SlabFacts facts{.name = {.key = KeyOf(spec.key),
                           .layers = spec.layers,
                           .write_id = IdOf<WriteId>(spec.write)},
                  .key_namespace = NamespaceOf(NamespaceOfKey(spec.key)),
                  .size_bytes = spec.pages * kPageBytes,
                  .token_count = 1000 + spec.key,
                  .text_bytes = 4000 + spec.key,
                  .payload_crc32c = spec.bytes_variant,
                  .block_hash = 77 + spec.key,
                  .tail_hash = 5 + spec.key,
                  .tokens_sha256 = IdOf<Sha256Digest>(1000 * spec.key + spec.tokenisation),
                  .model_layers = spec.says_layers ? LayersOf(NamespaceOfKey(spec.key)) : 0,
                  .ends_inside_character = spec.inside_character,
                  .idle = spec.idle};
  for (uint32_t i = 0; i < 3; ++i) {
    if ((spec.cut_points >> i & 1) == 0) continue;
    facts.cut_points.push_back({.token_count = 100 * (i + 1),
                                .text_bytes = 400 * (i + 1),
                                .block_hash = i,
                                .key = IdOf<Sha256Digest>(900000 + 10 * spec.key + i)});
  }
  return facts;
}

inline std::string Describe(const SlabName& name) {
  return absl::StrCat("k", NumberOf(name.key), "[", name.layers.begin, ",", name.layers.end, ")w",
                      NumberOf(name.write_id));
}

}  // namespace kvmesh::meta::testing

// Rows as the read index is told of them, from a text and its cuts.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "common/base/sha256.h"
#include "common/slab/cut_points.h"
#include "services/meta/core/effects.h"

namespace kvmesh::testing {

inline const slab::KeyNamespace kIndexNamespace = {std::string(32, 'm'), "q4_1/f16",
                                                   std::string(32, 'c')};

// Text that shares nothing with that of another seed.
inline std::string RowText(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::string text;
  text.reserve(bytes);
  while (text.size() < bytes) text.push_back(static_cast<char>('a' + random() % 26));
  return text;
}

// One slab on the first store; tokens of four bytes.
inline meta::RowOpened MakeRow(meta::RowId row, const slab::KeyNamespace& key_namespace,
                               const std::string& text, const std::vector<uint32_t>& cuts) {
  std::vector<slab::CutPoint> points;
  points.reserve(cuts.size());
  for (const uint32_t bytes : cuts) {
    points.push_back({.token_count = bytes / 4, .text_bytes = bytes});
  }
  slab::FillKeys(key_namespace, text, &points);
  return {.row = row,
          .key = slab::ContentKey(key_namespace, text),
          .tokens_sha256 = Sha256Of(text),
          .block_hash = slab::BlockHash(key_namespace, text),
          .tail_hash = slab::TailHash(text),
          .token_count = static_cast<uint32_t>(text.size() / 4),
          .text_bytes = static_cast<uint32_t>(text.size()),
          .cut_points = points,
          .slabs = {{.layers = {.begin = 0, .end = 30}, .size_bytes = 1 << 20}}};
}

}  // namespace kvmesh::testing

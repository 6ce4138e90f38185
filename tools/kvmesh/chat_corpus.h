// Rows as conversations leave them behind: many begin with one of a few system prompts, some of
// which are far more popular than others, and each continues an earlier row or begins anew. Texts
// are made from a seed when they are asked for, so that a million rows fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/meta/core/effects.h"

namespace kvmesh::cli {

// Const functions are thread-safe.
class ChatCorpus {
 public:
  ChatCorpus(uint32_t rows, uint64_t seed);

  static const slab::KeyNamespace& key_namespace();
  uint32_t size() const { return static_cast<uint32_t>(turns_.size()); }
  std::string Text(uint32_t row) const;
  // As the read index is told of it: two slabs on store 0, and a cut point about every KiB.
  meta::RowOpened Row(uint32_t row) const;
  // A prompt of `bytes` that continues a row or a system prompt, chosen by `random`, by text that
  // no row has; and the length of what is the longest match at least.
  struct Prompt {
    std::string text;
    uint32_t match_bytes_min = 0;
  };
  Prompt MakePrompt(uint64_t random, uint32_t bytes) const;

 private:
  // What a row adds to an earlier one or to a system prompt.
  struct Turn {
    int32_t before;   // a row; or below 0: the system prompt ~before
    uint32_t offset;  // of its text in pool_
    uint16_t bytes;
    uint16_t total_bytes;  // of the row's text
  };
  absl::string_view System(int32_t before) const;

  std::string pool_;  // random text
  std::vector<Turn> turns_;
};

}  // namespace kvmesh::cli

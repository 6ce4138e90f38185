// Compares any number of cut points with one prompt: what is asked of the query is kept, so that
// most cost a few comparisons. For explanations, which look at every row. Not thread-safe; the
// query must outlive it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/meta/core/lookup_part.h"
#include "services/meta/core/lookup_query.h"

namespace kvmesh::meta {

class PromptPath {
 public:
  explicit PromptPath(const LookupQuery& query);

  uint64_t text_bytes() const { return query_.text().size(); }
  // Whether the prompt begins with the cut point's text; the key decides.
  bool IsPrefix(const FiledCutPoint& point);
  // Whether the prompt begins with all whole KiB of the cut point's text.
  bool SharesBlocks(const FiledCutPoint& point) const;

 private:
  const LookupQuery& query_;
  std::vector<uint64_t> block_hashes_;                                // [blocks]
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> tail_hashes_;  // by blocks, where asked
  absl::flat_hash_map<uint32_t, Sha256Digest> keys_;                  // by length, where asked
};

}  // namespace kvmesh::meta

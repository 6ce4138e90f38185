// Cut points: the shorter lengths at which a slab of key/value layers serves too (DESIGN §5.2).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/slab/format.h"

namespace kvmesh::slab {

// Of one slab: what a store says of it stays far below a message's limit.
inline constexpr size_t kCutPointsMax = 65536;

// Whether `text` ends with a proper beginning of a UTF-8 character.
bool EndsInsideCharacter(absl::string_view text);

// Where a text is cut: each multiple of `align_tokens` from `min_tokens` on, moved back to the
// token edge before it while it lies inside a character; always before the end, and the first
// kCutPointsMax at most. `token_ends[i]` is the text's length after i + 1 tokens. Every shard of a
// model decides alike, from the same text.
std::vector<CutPoint> ChooseCutPoints(const KeyNamespace& key_namespace, absl::string_view text,
                                      absl::Span<const uint32_t> token_ends, uint32_t min_tokens,
                                      uint32_t align_tokens);

// Fills block hash, tail hash and key of `points`, which ascend and lie within `text`, in one pass
// over it.
void FillKeys(const KeyNamespace& key_namespace, absl::string_view text,
              std::vector<CutPoint>* points);

// DataLoss: too many, not ascending, at or behind the end, inside a character, or a key or block
// hash that is not the text's.
absl::Status CheckCutPoints(const SlabMeta& meta);

}  // namespace kvmesh::slab

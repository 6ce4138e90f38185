// Rows that went, when and why, by their cut points: the newest `points_max` of these. For
// explanations only. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "services/meta/core/lookup_part.h"
#include "services/meta/core/types.h"
#include "services/meta/index/prompt_path.h"

namespace kvmesh::meta {

struct GoneRow {
  Sha256Digest key;  // of the row's end
  uint32_t token_count = 0;
  uint32_t text_bytes = 0;
  // The cut point that was a prefix of the text.
  uint32_t cut_token_count = 0;
  uint32_t cut_text_bytes = 0;
  GoneCause cause = GoneCause::kEvicted;
  MonoTime at;
};

class GoneRows {
 public:
  explicit GoneRows(size_t points_max) : points_max_(points_max) {}

  // `points`: the row's cut points, its end among them.
  void Add(const FiledCutPoint& end, absl::Span<const FiledCutPoint> points, GoneCause cause,
           MonoTime at);
  // The row with the longest cut point above `bytes_min` that is a prefix of the text; of several
  // the one that went last.
  std::optional<GoneRow> Longest(PromptPath& path, uint64_t bytes_min) const;

 private:
  struct Point {
    FiledCutPoint point;
    Sha256Digest row_key;
    uint32_t row_token_count = 0;
    uint32_t row_text_bytes = 0;
    GoneCause cause = GoneCause::kEvicted;
    MonoTime at;
  };

  const size_t points_max_;
  mutable Mutex mutex_;
  std::deque<Point> points_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace kvmesh::meta

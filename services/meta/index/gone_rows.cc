#include "services/meta/index/gone_rows.h"

#include <algorithm>

namespace kvmesh::meta {

void GoneRows::Add(const FiledCutPoint& end, absl::Span<const FiledCutPoint> points,
                   GoneCause cause, MonoTime at) {
  MutexLock lock(&mutex_);
  for (const FiledCutPoint& point : points) {
    if (points_.size() >= points_max_) points_.pop_front();
    points_.push_back({.point = point,
                       .row_key = end.key,
                       .row_token_count = end.token_count,
                       .row_text_bytes = end.text_bytes,
                       .cause = cause,
                       .at = at});
  }
}

std::optional<GoneRow> GoneRows::Longest(PromptPath& path, uint64_t bytes_min) const {
  std::optional<GoneRow> longest;
  MutexLock lock(&mutex_);
  for (auto it = points_.rbegin(); it != points_.rend(); ++it) {
    const FiledCutPoint& point = it->point;
    if (point.text_bytes <= std::max<uint64_t>(bytes_min, longest ? longest->cut_text_bytes : 0) ||
        !path.IsPrefix(point)) {
      continue;
    }
    longest = GoneRow{.key = it->row_key,
                      .token_count = it->row_token_count,
                      .text_bytes = it->row_text_bytes,
                      .cut_token_count = point.token_count,
                      .cut_text_bytes = point.text_bytes,
                      .cause = it->cause,
                      .at = it->at};
  }
  return longest;
}

}  // namespace kvmesh::meta

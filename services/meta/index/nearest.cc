// What explanations ask of the index: they look at every row, where a lookup looks at its own path.
#include <algorithm>

#include "services/meta/index/read_index.h"

namespace kvmesh::meta {
namespace {

// Cut points of one row that are gone through at most: more than a row can have.
constexpr uint32_t kPointsOfRowMax = 1 << 20;

// The `count_max` neighbours that are known to share most, one for each next_key.
class Best {
 public:
  Best(size_t count_max, ReadIndex::Neighbours* found) : count_max_(count_max), found_(found) {}

  void Offer(const ReadIndex::Neighbour& one) {
    std::vector<ReadIndex::Neighbour>& rows = found_->rows;
    const auto same = std::find_if(rows.begin(), rows.end(), [&one](const auto& other) {
      return other.next_key == one.next_key;
    });
    if (same != rows.end()) {
      if (same->last_used_s < one.last_used_s) *same = one;
      return;
    }
    if (rows.size() < count_max_) {
      rows.push_back(one);
      return;
    }
    const auto least = std::min_element(rows.begin(), rows.end(), Less);
    const bool fits = count_max_ > 0 && Less(*least, one);
    const ReadIndex::Neighbour& out = fits ? *least : one;
    found_->left_out_bytes_max = std::max(found_->left_out_bytes_max, out.common_bytes_max);
    if (fits) *least = one;
  }

  void Sort() {
    std::sort(found_->rows.begin(), found_->rows.end(),
              [](const auto& a, const auto& b) { return Less(b, a); });
  }

 private:
  static bool Less(const ReadIndex::Neighbour& a, const ReadIndex::Neighbour& b) {
    return std::tie(a.common_bytes_min, a.last_used_s) <
           std::tie(b.common_bytes_min, b.last_used_s);
  }

  const size_t count_max_;
  ReadIndex::Neighbours* const found_;
};

}  // namespace

template <typename Visit>
bool ReadIndex::VisitCutPoints(uint32_t id, NamespaceId* key_namespace, const Visit& visit) const {
  RowPart& row_part = RowPartOf(id);
  Handle handle = kNone;
  uint32_t opened = 0;
  {
    MutexLock lock(&row_part.mutex);
    const Row* row = Find(row_part, id);
    if (row == nullptr || !row->open) return false;
    *key_namespace = row->key_namespace;
    handle = row->first;
    opened = row->opened;
  }
  // Entries may become another row's while they are gone through.
  for (uint32_t i = 0; i < kPointsOfRowMax && handle != kNone; ++i) {
    FiledCutPoint point;
    int32_t last_used_s = 0;
    {
      const Part& part = (*parts_)[PartOf(handle)];
      MutexLock lock(&part.mutex);
      point = part.cut_points.PointOf(EntryOf(handle));
      last_used_s = part.cut_points.LastUsed(EntryOf(handle));
      handle = part.cut_points.NextOfRow(EntryOf(handle));
    }
    if (!visit(point, last_used_s)) break;
  }
  MutexLock lock(&row_part.mutex);
  const Row* row = Find(row_part, id);
  return row->open && row->opened == opened;
}

ReadIndex::Neighbours ReadIndex::Nearest(const slab::KeyNamespace& key_namespace, PromptPath& path,
                                         size_t count_max) const {
  Neighbours found;
  std::optional<NamespaceId> wanted;
  {
    MutexLock lock(&names_mutex_);
    for (const auto& [id, name] : namespaces_) {
      if (name == key_namespace) wanted = id;
    }
  }
  if (!wanted.has_value()) return found;
  Best best(count_max, &found);
  const uint32_t rows_end = rows_end_.load();
  for (uint32_t id = 0; id < rows_end; ++id) {
    Neighbour row{.row = RowId{id}};
    bool differs = false;
    NamespaceId its{0};
    const bool stayed = VisitCutPoints(id, &its, [&](const FiledCutPoint& point, int32_t used_s) {
      if (its != *wanted) return false;
      if (row.row_key.is_zero()) row.row_key = point.key;
      if (path.IsPrefix(point)) {
        row.common_bytes_min = std::max<uint64_t>(row.common_bytes_min, point.text_bytes);
        return false;
      }
      differs = true;
      row.last_used_s = used_s;
      row.next_key = point.key;
      row.common_bytes_max = std::min<uint64_t>(point.text_bytes - 1, path.text_bytes());
      if (path.SharesBlocks(point)) {
        const uint64_t shared = point.text_bytes - point.text_bytes % kBlockBytes;
        row.common_bytes_min = std::max(row.common_bytes_min, shared);
      }
      return true;
    });
    if (!stayed || its != *wanted) continue;
    ++found.rows_seen;
    // One that the prompt begins with is no neighbour: if it can be read it is a hit.
    if (differs) best.Offer(row);
  }
  best.Sort();
  return found;
}

std::optional<LookupHit> ReadIndex::LookupRow(RowId row, PromptPath& path) const {
  const auto id = static_cast<uint32_t>(row);
  Found found;
  if (!Take(id, &found) || !TakeEnd(&found)) return std::nullopt;
  std::optional<FiledCutPoint> prefix;
  NamespaceId its{0};
  const bool stayed = VisitCutPoints(id, &its, [&](const FiledCutPoint& point, int32_t) {
    if (path.IsPrefix(point)) prefix = point;
    return !prefix.has_value();
  });
  if (!stayed || !prefix.has_value()) return std::nullopt;
  found.hit.key = prefix->key;
  found.hit.token_count = prefix->token_count;
  found.hit.text_bytes = prefix->text_bytes;
  return std::move(found.hit);
}

}  // namespace kvmesh::meta

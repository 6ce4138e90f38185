#include "services/meta/core/memories.h"

namespace kvmesh::meta {

void GoneRows::Add(GoneRow row) {
  if (rows_.size() >= count_max_) rows_.pop_front();
  rows_.push_back(std::move(row));
}

std::vector<GoneRow> GoneRows::Find(uint64_t block_hash) const {
  std::vector<GoneRow> found;
  for (auto row = rows_.rbegin(); row != rows_.rend(); ++row) {
    if (row->block_hash == block_hash) found.push_back(*row);
  }
  return found;
}

void CancelledWrites::Add(const WriteId& write_id, MonoTime now) {
  Forget(now);
  if (!writes_.insert(write_id).second) return;
  oldest_first_.emplace_back(now, write_id);
  if (oldest_first_.size() > count_max_) ForgetOldest();
}

bool CancelledWrites::Contains(const WriteId& write_id, MonoTime now) {
  Forget(now);
  return writes_.contains(write_id);
}

void CancelledWrites::Forget(MonoTime now) {
  while (!oldest_first_.empty() && oldest_first_.front().first + memory_ <= now) ForgetOldest();
}

void CancelledWrites::ForgetOldest() {
  writes_.erase(oldest_first_.front().second);
  oldest_first_.pop_front();
}

}  // namespace kvmesh::meta

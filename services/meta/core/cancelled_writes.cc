#include "services/meta/core/cancelled_writes.h"

namespace kvmesh::meta {

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

// Writes that were cancelled: what is announced under one is deleted. They are remembered for a
// time and in a bounded number. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "services/meta/core/types.h"

namespace kvmesh::meta {

class CancelledWrites {
 public:
  CancelledWrites(absl::Duration memory, size_t count_max)
      : memory_(memory), count_max_(count_max) {}
  void Add(const WriteId& write_id, MonoTime now);
  bool Contains(const WriteId& write_id, MonoTime now);

 private:
  void Forget(MonoTime now);
  void ForgetOldest();

  const absl::Duration memory_;
  const size_t count_max_;
  std::deque<std::pair<MonoTime, WriteId>> oldest_first_;
  absl::flat_hash_set<WriteId> writes_;
};

}  // namespace kvmesh::meta

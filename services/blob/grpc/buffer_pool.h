// Buffers of one chunk each that are used again: fresh ones would cost a page fault every 4 KiB.
// Thread-safe. Owned by a shared_ptr: a buffer that is still out keeps its pool alive.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/base/mutex.h"

namespace kvmesh::blob {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Keeps at most `idle_max` buffers that nobody uses.
  explicit BufferPool(size_t idle_max) : idle_max_(idle_max) {}

  // kChunkBytesMax bytes with whatever they last held. Comes back when the last reference goes.
  std::shared_ptr<char[]> Take();

 private:
  void GiveBack(std::unique_ptr<char[]> buffer);

  const size_t idle_max_;
  Mutex mutex_;
  std::vector<std::unique_ptr<char[]>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::blob

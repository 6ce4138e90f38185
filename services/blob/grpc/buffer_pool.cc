#include "services/blob/grpc/buffer_pool.h"

#include <utility>

#include "services/blob/core/transfer_plan.h"

namespace kvmesh::blob {

std::shared_ptr<char[]> BufferPool::Take() {
  std::unique_ptr<char[]> buffer;
  {
    MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      buffer = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (buffer == nullptr) buffer.reset(new char[kChunkBytesMax]);
  return {buffer.release(), [pool = shared_from_this()](char* bytes) {
            pool->GiveBack(std::unique_ptr<char[]>(bytes));
          }};
}

void BufferPool::GiveBack(std::unique_ptr<char[]> buffer) {
  MutexLock lock(&mutex_);
  if (idle_.size() < idle_max_) idle_.push_back(std::move(buffer));
}

}  // namespace kvmesh::blob

// Memory for packed weights: large chunks of huge pages, handed out front to back, so that many
// small matrices share pages and reading them walks few. A chunk lives as long as the last block in
// it. Not thread-safe; what it hands out is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace kvmesh::shard {

class WeightArena {
 public:
  // Every block begins at a multiple of so many bytes.
  static constexpr size_t kAlignment = 64;

  // `bytes` of room, not initialised. Pages that are never written cost no memory.
  // ResourceExhausted: the system gives no more address space.
  absl::StatusOr<std::shared_ptr<uint8_t>> Allocate(size_t bytes);

 private:
  std::shared_ptr<uint8_t> chunk_;
  size_t used_ = 0;
  size_t size_ = 0;
};

}  // namespace kvmesh::shard

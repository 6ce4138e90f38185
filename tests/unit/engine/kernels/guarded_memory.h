// Memory that ends where the next byte may not be touched: reading on ends the process.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"

namespace kvmesh::shard {

class GuardedMemory {
 public:
  GuardedMemory(const void* content, size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page - 1) / page * page + page;
    start_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(start_, MAP_FAILED);
    auto* end = static_cast<uint8_t*>(start_) + mapped_ - page;
    EXPECT_EQ(mprotect(end, page, PROT_NONE), 0);
    data_ = end - bytes;
    std::memcpy(data_, content, bytes);
  }
  ~GuardedMemory() { munmap(start_, mapped_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  uint8_t* data() const { return data_; }

 private:
  void* start_;
  uint8_t* data_;
  size_t mapped_;
};

}  // namespace kvmesh::shard

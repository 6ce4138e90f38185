#include "tests/unit/model/largest_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace kvmesh::model {
namespace {
std::atomic<size_t> g_largest = 0;

void* Allocate(size_t size) {
  size_t seen = g_largest.load();
  while (size > seen && !g_largest.compare_exchange_weak(seen, size)) {
  }
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
}  // namespace

void ResetLargestAllocation() {
  g_largest = 0;
}
size_t LargestAllocation() {
  return g_largest;
}

}  // namespace kvmesh::model

void* operator new(size_t size) {
  return kvmesh::model::Allocate(size);
}
void* operator new[](size_t size) {
  return kvmesh::model::Allocate(size);
}
void operator delete(void* block) noexcept {
  std::free(block);
}
void operator delete[](void* block) noexcept {
  std::free(block);
}
void operator delete(void* block, size_t) noexcept {
  std::free(block);
}
void operator delete[](void* block, size_t) noexcept {
  std::free(block);
}

// Memory that begins at a cache line and only grows. What it holds is lost when it grows. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace kvmesh::shard {

template <typename T>
class AlignedBuffer {
 public:
  // At least `count` elements, not initialised. Throws std::bad_alloc.
  T* Room(size_t count) {
    if (count > count_) {
      count_ = 0;
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), kAlignment)));
      count_ = count;
    }
    return data_.get();
  }
  T* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<T, Delete> data_;
  size_t count_ = 0;
};

}  // namespace kvmesh::shard

// Objects named by small numbers: a third of the memory of pointers and nodes, and an address that
// never moves. A number is used again once its object is removed. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvmesh::meta {

inline constexpr uint32_t kNone = UINT32_MAX;

template <typename T>
class Arena {
 public:
  uint32_t Add(T value) {
    ++size_;
    if (!free_.empty()) {
      const uint32_t index = free_.back();
      free_.pop_back();
      used_[index] = true;
      (*this)[index] = std::move(value);
      return index;
    }
    const auto index = static_cast<uint32_t>(used_.size());
    if (index % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
    used_.push_back(true);
    (*this)[index] = std::move(value);
    return index;
  }

  void Remove(uint32_t index) {
    --size_;
    (*this)[index] = T();
    used_[index] = false;
    free_.push_back(index);
  }

  T& operator[](uint32_t index) { return chunks_[index / kChunk][index % kChunk]; }
  const T& operator[](uint32_t index) const { return chunks_[index / kChunk][index % kChunk]; }

  bool contains(uint32_t index) const { return index < used_.size() && used_[index]; }
  // All indices lie below.
  uint32_t bound() const { return static_cast<uint32_t>(used_.size()); }
  size_t size() const { return size_; }

 private:
  static constexpr uint32_t kChunk = 1024;

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<bool> used_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace kvmesh::meta

#include "services/shard/engine/key_value_state.h"

#include <cstring>

namespace kvmesh::shard {

void KeyValueState::Reserve(uint64_t tokens) {
  const size_t wanted = (tokens + kBlockTokens - 1) / kBlockTokens;
  if (wanted <= blocks_.size()) return;
  // First the lists, so that they never differ in length whatever fails.
  const size_t room = wanted <= blocks_.capacity() ? wanted : wanted + blocks_.capacity();
  blocks_.reserve(room);
  block_starts_.reserve(room);
  while (blocks_.size() < wanted) {
    blocks_.push_back(std::make_shared<float[]>(BlockFloats()));
    block_starts_.push_back(blocks_.back().get());
  }
}

void KeyValueState::Put(uint64_t position, const float* key, const float* value) {
  float* block = block_starts_[position / kBlockTokens];
  const size_t token = position % kBlockTokens;
  for (size_t head = 0; head < kv_heads_; ++head) {
    float* keys = block + key_offset(head) + token;
    for (size_t i = 0; i < head_dim_; ++i) keys[i * kBlockTokens] = key[head * head_dim_ + i];
    std::memcpy(block + value_offset(head) + token * head_dim_, value + head * head_dim_,
                head_dim_ * sizeof(float));
  }
}

}  // namespace kvmesh::shard

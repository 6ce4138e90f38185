// Keys and values of one layer and one session: a list of blocks of a fixed number of tokens. A
// block is never moved, and once written a token's part of it is never overwritten, so that a
// snapshot can share blocks with a session that goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "services/shard/core/layer_state.h"
#include "services/shard/engine/kernels.h"

namespace kvmesh::shard {

// In a block: keys [kv_heads, kBlockTokens, head_dim], then values likewise. Keys are rotated
// already.
class KeyValueState final : public LayerState {
 public:
  static constexpr size_t kBlockTokens = kAttentionBlock;

  KeyValueState(uint32_t kv_heads, uint32_t head_dim) : kv_heads_(kv_heads), head_dim_(head_dim) {}

  model::LayerKind kind() const override { return model::LayerKind::kKeyValue; }
  uint64_t bytes() const override { return blocks_.size() * BlockFloats() * sizeof(float); }

  uint64_t tokens() const { return tokens_; }
  void set_tokens(uint64_t tokens) { tokens_ = tokens; }

  // Room for `tokens` in all. May throw std::bad_alloc; the state is then as before or has spare
  // blocks.
  void Reserve(uint64_t tokens);

  // Writes the key and the value of `position`, which has room: [kv_heads, head_dim] each.
  void Put(uint64_t position, const float* key, const float* value);

  // From a block's start to the keys, and the values, of one head.
  size_t key_offset(size_t kv_head) const { return kv_head * kBlockTokens * head_dim_; }
  size_t value_offset(size_t kv_head) const { return key_offset(kv_heads_ + kv_head); }
  const float* const* blocks() const { return block_starts_.data(); }

 private:
  size_t BlockFloats() const { return key_offset(2 * kv_heads_); }

  size_t kv_heads_;
  size_t head_dim_;
  uint64_t tokens_ = 0;
  // Shared with the snapshots that hold the same tokens.
  std::vector<std::shared_ptr<float[]>> blocks_;
  std::vector<float*> block_starts_;
};

}  // namespace kvmesh::shard

// Keys and values of one layer and one session: a list of blocks of a fixed number of tokens. A
// block is never moved, and once written a token's part of it is never overwritten, so that a
// snapshot can share blocks with a session that goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "services/shard/core/layer_state.h"

namespace kvmesh::shard {

// In a block: keys [kv_heads, kBlockTokens, head_dim], then values likewise. Keys are rotated
// already.
class KeyValueState final : public LayerState {
 public:
  static constexpr size_t kBlockTokens = 64;

  KeyValueState(uint32_t kv_heads, uint32_t head_dim) : kv_heads_(kv_heads), head_dim_(head_dim) {}

  model::LayerKind kind() const override { return model::LayerKind::kKeyValue; }
  uint64_t bytes() const override { return blocks_.size() * BlockFloats() * sizeof(float); }

  uint64_t tokens() const { return tokens_; }
  void set_tokens(uint64_t tokens) { tokens_ = tokens; }

  // Room for `tokens` in all. May throw std::bad_alloc; the state is then as before or has spare
  // blocks.
  void Reserve(uint64_t tokens);

  // Where the key of `position`, head 0, goes; the other heads follow at head_stride().
  float* key(uint64_t position) const {
    return block_starts_[position / kBlockTokens] + position % kBlockTokens * head_dim_;
  }
  float* value(uint64_t position) const { return key(position) + kv_heads_ * head_stride(); }
  size_t head_stride() const { return kBlockTokens * head_dim_; }

  const float* const* blocks() const { return block_starts_.data(); }

 private:
  size_t BlockFloats() const { return 2 * kv_heads_ * head_stride(); }

  size_t kv_heads_;
  size_t head_dim_;
  uint64_t tokens_ = 0;
  // Shared with the snapshots that hold the same tokens.
  std::vector<std::shared_ptr<float[]>> blocks_;
  std::vector<float*> block_starts_;
};

}  // namespace kvmesh::shard

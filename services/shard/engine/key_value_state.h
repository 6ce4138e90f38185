// Keys and values of one layer and one session: a list of blocks of a fixed number of tokens. A
// block is never moved, and once written a token's part of it is never overwritten, so that a
// snapshot can share blocks with a session that goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "services/shard/core/layer_state.h"
#include "services/shard/engine/block_pool.h"
#include "services/shard/engine/kv_dtype.h"

namespace kvmesh::shard {

// What all layers of a model have in common. Keys are rotated already. A block holds the
// keys of each head, [head_dim, kAttentionBlock], and behind them all the values of each,
// [kAttentionBlock, ValueStride(head_dim)]: attention reads the keys of all heads in one run.
struct KeyValueLayout {
  size_t kv_heads = 0;
  size_t head_dim = 0;
  KvDtype dtype = KvDtype::kF16;

  // Bytes from a block's start.
  size_t key_offset(size_t kv_head) const { return kv_head * head_key_bytes(); }
  size_t value_offset(size_t kv_head) const {
    return kv_heads * head_key_bytes() + kv_head * head_value_bytes();
  }
  size_t block_bytes() const { return value_offset(kv_heads); }
  size_t row_bytes() const { return kv_heads * head_dim * BytesOf(dtype); }
  // Of one head in a block.
  size_t head_key_bytes() const { return kAttentionBlock * head_dim * BytesOf(dtype); }
  size_t head_value_bytes() const {
    return kAttentionBlock * ValueStride(head_dim) * BytesOf(dtype);
  }
};

class KeyValueState final : public LayerState {
 public:
  static constexpr size_t kBlockTokens = kAttentionBlock;

  // `pool`: of blocks of layout.block_bytes(). Shared, because a snapshot may outlive the engine.
  KeyValueState(const KeyValueLayout& layout, std::shared_ptr<BlockPool> pool)
      : layout_(layout), pool_(std::move(pool)) {}

  model::LayerKind kind() const override { return model::LayerKind::kKeyValue; }
  uint64_t bytes() const override { return blocks_.size() * layout_.block_bytes(); }
  uint64_t tokens() const override { return tokens_; }
  absl::StatusOr<std::unique_ptr<LayerState>> Snapshot(uint64_t tokens) const override;
  uint64_t row_bytes() const override { return layout_.row_bytes(); }
  absl::Status CopyRows(uint64_t begin, uint64_t end, absl::Span<uint8_t> keys,
                        absl::Span<uint8_t> values) const override;
  absl::Status AppendRows(absl::Span<const uint8_t> keys,
                          absl::Span<const uint8_t> values) override;

  const KeyValueLayout& layout() const { return layout_; }
  void set_tokens(uint64_t tokens) { tokens_ = tokens; }

  // Room for `tokens` in all. May throw std::bad_alloc; the state is then as before or has spare
  // blocks.
  void Reserve(uint64_t tokens);

  // Writes the key and the value of `position`, which has room: canonical rows.
  void Put(uint64_t position, const uint8_t* key, const uint8_t* value);

  // Reads them back: canonical rows.
  void Copy(uint64_t position, uint8_t* key, uint8_t* value) const;

  const uint8_t* const* blocks() const { return block_starts_.data(); }

 private:
  // For elements of kBytes.
  template <size_t kBytes>
  void PutElements(uint64_t position, const uint8_t* key, const uint8_t* value);
  template <size_t kBytes>
  void CopyElements(uint64_t position, uint8_t* key, uint8_t* value) const;

  KeyValueLayout layout_;
  std::shared_ptr<BlockPool> pool_;
  uint64_t tokens_ = 0;
  // Shared with the snapshots that hold the same tokens.
  std::vector<std::shared_ptr<uint8_t>> blocks_;
  std::vector<uint8_t*> block_starts_;
};

}  // namespace kvmesh::shard

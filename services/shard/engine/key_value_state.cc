#include "services/shard/engine/key_value_state.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh::shard {
void KeyValueState::Reserve(uint64_t tokens) {
  const size_t wanted = (tokens + kBlockTokens - 1) / kBlockTokens;
  if (wanted <= blocks_.size()) return;
  // First the lists, so that they never differ in length whatever fails.
  const size_t room = wanted <= blocks_.capacity() ? wanted : wanted + blocks_.capacity();
  blocks_.reserve(room);
  block_starts_.reserve(room);
  while (blocks_.size() < wanted) {
    blocks_.push_back(pool_->Allocate());
    block_starts_.push_back(blocks_.back().get());
  }
}

template <size_t kBytes>
void KeyValueState::PutElements(uint64_t position, const uint8_t* key, const uint8_t* value) {
  uint8_t* block = block_starts_[position / kBlockTokens];
  const size_t token = position % kBlockTokens;
  const size_t row = layout_.head_dim * kBytes;
  for (size_t head = 0; head < layout_.kv_heads; ++head, key += row, value += row) {
    uint8_t* keys = block + layout_.key_offset(head) + token * kBytes;
    for (size_t i = 0; i < layout_.head_dim; ++i) {
      std::memcpy(keys + i * kBlockTokens * kBytes, key + i * kBytes, kBytes);
    }
    uint8_t* values = block + layout_.value_offset(head);
    std::memcpy(values + token * ValueStride(layout_.head_dim) * kBytes, value, row);
  }
}

template <size_t kBytes>
void KeyValueState::CopyElements(uint64_t position, uint8_t* key, uint8_t* value) const {
  const uint8_t* block = block_starts_[position / kBlockTokens];
  const size_t token = position % kBlockTokens;
  const size_t row = layout_.head_dim * kBytes;
  for (size_t head = 0; head < layout_.kv_heads; ++head, key += row, value += row) {
    const uint8_t* keys = block + layout_.key_offset(head) + token * kBytes;
    for (size_t i = 0; i < layout_.head_dim; ++i) {
      std::memcpy(key + i * kBytes, keys + i * kBlockTokens * kBytes, kBytes);
    }
    const uint8_t* values = block + layout_.value_offset(head);
    std::memcpy(value, values + token * ValueStride(layout_.head_dim) * kBytes, row);
  }
}

void KeyValueState::Put(uint64_t position, const uint8_t* key, const uint8_t* value) {
  BytesOf(layout_.dtype) == 2 ? PutElements<2>(position, key, value)
                              : PutElements<4>(position, key, value);
}

void KeyValueState::Copy(uint64_t position, uint8_t* key, uint8_t* value) const {
  BytesOf(layout_.dtype) == 2 ? CopyElements<2>(position, key, value)
                              : CopyElements<4>(position, key, value);
}

absl::StatusOr<std::unique_ptr<LayerState>> KeyValueState::Snapshot(uint64_t tokens) const {
  if (tokens > tokens_) {
    return absl::OutOfRangeError(
        absl::StrCat("a snapshot of ", tokens, " tokens, ", tokens_, " are held"));
  }
  const size_t full = tokens / kBlockTokens;
  try {
    auto snapshot = std::make_unique<KeyValueState>(layout_, pool_);
    for (size_t i = 0; i < full; ++i) {
      snapshot->blocks_.push_back(blocks_[i]);
      snapshot->block_starts_.push_back(block_starts_[i]);
    }
    if (tokens % kBlockTokens != 0) {
      // The whole block: what lies beyond the snapshot's tokens is never read.
      snapshot->Reserve(tokens);
      std::memcpy(snapshot->block_starts_[full], block_starts_[full], layout_.block_bytes());
    }
    snapshot->tokens_ = tokens;
    return snapshot;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a snapshot of ", tokens, " tokens"));
  }
}

absl::Status KeyValueState::CopyRows(uint64_t begin, uint64_t end, absl::Span<uint8_t> keys,
                                     absl::Span<uint8_t> values) const {
  if (begin > end || end > tokens_) {
    return absl::OutOfRangeError(
        absl::StrCat("rows [", begin, ", ", end, "), ", tokens_, " are held"));
  }
  const size_t row = row_bytes();
  const uint64_t bytes = (end - begin) * row;
  if (keys.size() != bytes || values.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("room for ", keys.size(), " and ", values.size(),
                                                   " bytes, the rows have ", bytes));
  }
  for (uint64_t token = begin; token < end; ++token) {
    const size_t at = (token - begin) * row;
    Copy(token, keys.data() + at, values.data() + at);
  }
  return absl::OkStatus();
}

absl::Status KeyValueState::AppendRows(absl::Span<const uint8_t> keys,
                                       absl::Span<const uint8_t> values) {
  const size_t row = row_bytes();
  if (keys.size() != values.size() || keys.size() % row != 0) {
    return absl::InvalidArgumentError(absl::StrCat(keys.size(), " bytes of keys, ", values.size(),
                                                   " of values: not equal, or no multiple of ",
                                                   row));
  }
  const uint64_t count = keys.size() / row;
  try {
    Reserve(tokens_ + count);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", count, " tokens"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    Put(tokens_ + i, keys.data() + i * row, values.data() + i * row);
  }
  tokens_ += count;
  return absl::OkStatus();
}

}  // namespace kvmesh::shard

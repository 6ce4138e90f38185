#include "services/shard/engine/key_value_state.h"

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

}  // namespace kvmesh::shard

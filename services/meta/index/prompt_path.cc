#include "services/meta/index/prompt_path.h"

#include "absl/types/span.h"

namespace kvmesh::meta {

PromptPath::PromptPath(const LookupQuery& query) : query_(query) {
  block_hashes_.reserve(query.blocks() + 1);
  for (uint32_t i = 0; i <= query.blocks(); ++i) block_hashes_.push_back(query.BlockHash(i));
}

bool PromptPath::SharesBlocks(const FiledCutPoint& point) const {
  const uint32_t blocks = point.text_bytes / kBlockBytes;
  return blocks < block_hashes_.size() && block_hashes_[blocks] == point.block_hash;
}

bool PromptPath::IsPrefix(const FiledCutPoint& point) {
  if (!SharesBlocks(point)) return false;
  const uint32_t blocks = point.text_bytes / kBlockBytes;
  const uint32_t tail_bytes = point.text_bytes % kBlockBytes;
  if (tail_bytes > query_.TailBytes(blocks)) return false;
  std::vector<uint32_t>& hashes = tail_hashes_[blocks];
  if (hashes.empty()) {
    hashes.resize(query_.TailBytes(blocks) + 1);
    query_.TailHashes(blocks, absl::MakeSpan(hashes));
  }
  if (hashes[tail_bytes] != point.tail_hash) return false;
  const auto [key, added] = keys_.try_emplace(point.text_bytes);
  if (added) key->second = query_.Key(blocks, tail_bytes);
  return key->second == point.key;
}

}  // namespace kvmesh::meta

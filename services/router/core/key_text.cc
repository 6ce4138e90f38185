#include "services/router/core/key_text.h"

#include "common/forward/key_namespace.h"
#include "common/slab/cut_points.h"

namespace kvmesh::router {

void KeyText::Append(absl::Span<const uint32_t> ids, const text::Tokenizer& tokenizer) {
  for (const uint32_t id : ids) {
    text_ += tokenizer.KeyBytes(id);
    ends_.push_back(text_.size());
  }
}

bool KeyText::IsBoundary(size_t tokens) const {
  return End(tokens) > 0 && !slab::EndsInsideCharacter(Prefix(tokens));
}

size_t KeyText::BoundaryAtOrBefore(size_t tokens) const {
  while (tokens > 0 && !IsBoundary(tokens)) --tokens;
  return tokens;
}

PrefixKeys::PrefixKeys(const forward::CacheNamespace& cache_namespace)
    : empty_(forward::KeyNamespaceOf(cache_namespace)), running_(empty_) {}

Sha256Digest PrefixKeys::At(absl::string_view text, uint64_t length) {
  if (length < hashed_) {
    running_ = empty_;
    hashed_ = 0;
  }
  running_.Update(text.substr(hashed_, length - hashed_));
  hashed_ = length;
  return running_.Key();
}

}  // namespace kvmesh::router

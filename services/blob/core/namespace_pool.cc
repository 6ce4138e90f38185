#include "services/blob/core/namespace_pool.h"

#include <tuple>

namespace kvmesh::blob {

bool NamespacePool::Less::Before(const slab::KeyNamespace& a, const slab::KeyNamespace& b) {
  return std::tie(a.model_fp, a.quant, a.ctx_params) < std::tie(b.model_fp, b.quant, b.ctx_params);
}

NamespacePool::Shared NamespacePool::Share(const slab::KeyNamespace& key_namespace) {
  const auto found = pool_.find(key_namespace);
  if (found != pool_.end()) return *found;
  return *pool_.insert(std::make_shared<const slab::KeyNamespace>(key_namespace)).first;
}

void NamespacePool::GiveBack(Shared* shared) {
  constexpr long kThisAndThePool = 2;
  if (shared->use_count() == kThisAndThePool) pool_.erase(*shared);
  shared->reset();
}

}  // namespace kvmesh::blob

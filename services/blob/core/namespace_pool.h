// One copy of every namespace in use: the slabs of a store have few. Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <set>

#include "common/slab/content_key.h"

namespace kvmesh::blob {

class NamespacePool {
 public:
  // Shared by all slabs of the namespace, and by the pool until the last of them goes.
  using Shared = std::shared_ptr<const slab::KeyNamespace>;

  Shared Share(const slab::KeyNamespace& key_namespace);
  // Leaves `shared` null.
  void GiveBack(Shared* shared);
  size_t size() const { return pool_.size(); }

 private:
  struct Less {
    using is_transparent = void;
    static bool Before(const slab::KeyNamespace& a, const slab::KeyNamespace& b);
    bool operator()(const Shared& a, const Shared& b) const { return Before(*a, *b); }
    bool operator()(const Shared& a, const slab::KeyNamespace& b) const { return Before(*a, b); }
    bool operator()(const slab::KeyNamespace& a, const Shared& b) const { return Before(a, *b); }
  };
  std::set<Shared, Less> pool_;
};

}  // namespace kvmesh::blob

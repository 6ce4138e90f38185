#include "services/meta/core/namespaces.h"

#include "absl/strings/str_cat.h"

namespace kvmesh::meta {
namespace {

// Lengths first, so that no two namespaces spell the same bytes.
std::string Spell(const slab::KeyNamespace& key_namespace) {
  return absl::StrCat(key_namespace.model_fp.size(), ",", key_namespace.quant.size(), ":",
                      key_namespace.model_fp, key_namespace.quant, key_namespace.ctx_params);
}

}  // namespace

Namespaces::Acquired Namespaces::Acquire(const slab::KeyNamespace& key_namespace) {
  const auto [found, opened] = by_fields_.try_emplace(Spell(key_namespace), 0);
  if (opened) found->second = entries_.Add({.key_namespace = key_namespace});
  const NamespaceId id{found->second};
  Acquire(id);
  return {.id = id, .opened = opened};
}

bool Namespaces::Release(NamespaceId id) {
  Entry& entry = At(id);
  if (--entry.holders > 0) return false;
  by_fields_.erase(Spell(entry.key_namespace));
  entries_.Remove(static_cast<uint32_t>(id));
  return true;
}

std::optional<NamespaceId> Namespaces::Find(const slab::KeyNamespace& key_namespace) const {
  const auto found = by_fields_.find(Spell(key_namespace));
  if (found == by_fields_.end()) return std::nullopt;
  return NamespaceId{found->second};
}

}  // namespace kvmesh::meta

// Namespaces as small numbers, each kept as long as something is filed under it. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "services/meta/core/arena.h"
#include "services/meta/core/types.h"

namespace kvmesh::meta {

class Namespaces {
 public:
  struct Acquired {
    NamespaceId id{0};
    bool opened = false;  // it was not there before
  };
  // One more holder.
  Acquired Acquire(const slab::KeyNamespace& key_namespace);
  void Acquire(NamespaceId id) { ++At(id).holders; }
  // One holder less. Whether it was the last, and the id is free.
  bool Release(NamespaceId id);

  std::optional<NamespaceId> Find(const slab::KeyNamespace& key_namespace) const;
  const slab::KeyNamespace& Get(NamespaceId id) const { return At(id).key_namespace; }
  uint64_t holders(NamespaceId id) const { return At(id).holders; }
  size_t size() const { return entries_.size(); }

  // L of its model; 0 while nobody has said. The model's fingerprint fixes it.
  uint32_t model_layers(NamespaceId id) const { return At(id).model_layers; }
  void set_model_layers(NamespaceId id, uint32_t layers) { At(id).model_layers = layers; }

  // What it may have in all stores (Quotas); 0: no limit is known.
  uint64_t bytes_max(NamespaceId id) const { return At(id).bytes_max; }
  void set_bytes_max(NamespaceId id, uint64_t bytes) { At(id).bytes_max = bytes; }
  // Of its reservations that wait for room.
  uint64_t waiting_bytes(NamespaceId id) const { return At(id).waiting_bytes; }
  void AddWaiting(NamespaceId id, uint64_t bytes) { At(id).waiting_bytes += bytes; }
  void RemoveWaiting(NamespaceId id, uint64_t bytes) { At(id).waiting_bytes -= bytes; }

 private:
  struct Entry {
    slab::KeyNamespace key_namespace;
    uint32_t model_layers = 0;
    uint64_t holders = 0;
    uint64_t bytes_max = 0;
    uint64_t waiting_bytes = 0;
  };
  Entry& At(NamespaceId id) { return entries_[static_cast<uint32_t>(id)]; }
  const Entry& At(NamespaceId id) const { return entries_[static_cast<uint32_t>(id)]; }

  Arena<Entry> entries_;
  absl::flat_hash_map<std::string, uint32_t> by_fields_;
};

}  // namespace kvmesh::meta

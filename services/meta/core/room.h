// Room in stores: what one could give, what it gives up, and where a write goes. Pure rules over
// the ledger. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "services/meta/core/rows.h"

namespace kvmesh::meta {

// One range of a write and where it goes.
struct WritePart {
  LayerRange layers;
  uint32_t pages = 0;
  StoreSlot store{0};
  uint64_t bytes() const { return pages * kPageBytes; }
};

class Room {
 public:
  Room(Ledger& ledger, Rows& rows) : ledger_(ledger), rows_(rows) {}

  // Bytes that a new write could have at most, once all that may be evicted has gone.
  uint64_t Obtainable(StoreSlot slot) const;
  // Bytes that it could have now.
  uint64_t Free(StoreSlot slot) const;

  // Picks a store for each part: of the first tier that can hold them all, the store with most
  // room, and no second one unless that is full. ResourceExhausted NO_ROOM, TOO_LARGE; Unavailable
  // NO_STORE.
  absl::Status Choose(absl::Span<const Tier> tiers, std::vector<WritePart>* parts) const;

  // Above the high watermark, waiting bytes included: evicts down to the low one, or as far as
  // what may not go allows. Stops when Ledger::evictions_left are used up; GoOn goes on.
  void Evict(StoreSlot slot);
  void GoOn();
  bool HasMore() const;

 private:
  uint64_t Fixed(StoreSlot slot) const;
  std::vector<StoreSlot> Serving(Tier tier) const;
  static bool Spread(std::map<StoreSlot, uint64_t> room, std::vector<WritePart>* parts);

  Ledger& ledger_;
  Rows& rows_;
};

}  // namespace kvmesh::meta

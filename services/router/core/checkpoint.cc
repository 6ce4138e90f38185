#include "services/router/core/checkpoint.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"

namespace kvmesh::router {

std::string SlabName(const forward::SlabRef& slab) {
  return absl::StrCat(slab.key.ToHex(), ".", slab.layers.begin, "-", slab.layers.end, ".",
                      slab.write_id.ToHex());
}

absl::StatusOr<std::vector<forward::SlabRef>> SlabsFor(LayerRange layers,
                                                       absl::Span<const StoredSlab> slabs) {
  std::vector<forward::SlabRef> chosen;
  for (uint32_t at = layers.begin; at < layers.end; at = chosen.back().layers.end) {
    const StoredSlab* best = nullptr;
    for (const StoredSlab& slab : slabs) {
      const LayerRange& has = slab.ref.layers;
      if (has.begin > at || has.end <= at) continue;
      if (best == nullptr || has.end > best->ref.layers.end) best = &slab;
    }
    if (best == nullptr) return absl::NotFoundError(absl::StrCat("no slab has layer ", at));
    chosen.push_back(best->ref);
  }
  return chosen;
}

std::map<std::string, uint32_t> TokensByTier(absl::Span<const StoredSlab> slabs,
                                             uint32_t layer_count, uint32_t tokens) {
  std::map<std::string, uint32_t> by_tier;
  const absl::StatusOr<std::vector<forward::SlabRef>> read = SlabsFor({0, layer_count}, slabs);
  if (!read.ok() || layer_count == 0) return by_tier;
  uint32_t begin = 0;
  for (const forward::SlabRef& ref : *read) {
    const auto slab = std::find_if(slabs.begin(), slabs.end(),
                                   [&ref](const StoredSlab& one) { return one.ref == ref; });
    // Rounded at the layers' edges, so that the shares add up to all tokens.
    const auto share = [&](uint32_t layer) {
      return static_cast<uint32_t>(uint64_t{tokens} * layer / layer_count);
    };
    by_tier[slab->tier] += share(ref.layers.end) - share(begin);
    begin = ref.layers.end;
  }
  return by_tier;
}

absl::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCold:
      return "COLD";
    case Outcome::kPartial:
      return "PARTIAL";
    case Outcome::kExact:
      return "EXACT";
  }
  return "unknown";
}

Sha256Digest HoldIds::Next() {
  return Sha256().Update(session_.bytes()).UpdateU64(++holds_).Digest();
}

LeaseId HoldIds::NextLease() {
  return *LeaseId::FromBytes(Next().bytes().substr(0, LeaseId::kSize), "lease_id");
}

RequestId HoldIds::NextRequest() {
  return *RequestId::FromBytes(Next().bytes().substr(0, RequestId::kSize), "request_id");
}

}  // namespace kvmesh::router

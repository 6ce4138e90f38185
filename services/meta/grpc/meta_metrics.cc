#include "services/meta/grpc/meta_metrics.h"

namespace kvmesh::meta {
namespace {

constexpr char kLookupsHelp[] = "Lookups by outcome";
constexpr char kStoreBytesHelp[] = "Bytes of the stores of a tier by what they are of";

prometheus::Histogram::BucketBoundaries LookupBuckets() {
  return {5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1, 1};
}

}  // namespace

MetaMetrics::MetaMetrics(metrics::Metrics& metrics)
    : metrics_(metrics),
      hits_(metrics.Counter("lookups_total", kLookupsHelp, {{"outcome", "hit"}})),
      misses_(metrics.Counter("lookups_total", kLookupsHelp, {{"outcome", "miss"}})),
      checkouts_lost_(metrics.Counter("lookup_checkouts_lost_total",
                                      "Hits that were gone when they were to be pinned")),
      lookup_seconds_(
          metrics.Histogram("lookup_seconds", "Time of a lookup in the index", LookupBuckets())),
      queue_(metrics.Gauge("queue_commands", "Commands taken from the queue at once")) {
  for (int tier = 0; tier < kTiers; ++tier) {
    hit_tokens_[static_cast<size_t>(tier)] = &metrics.Counter(
        "hit_tokens_total", "Tokens that lookups found, by the tier of their first layers",
        {{"tier", std::string(ToString(static_cast<Tier>(tier)))}});
  }
}

void MetaMetrics::CountHit(Tier tier, uint32_t tokens) {
  hits_.Increment();
  hit_tokens_[static_cast<size_t>(tier)]->Increment(tokens);
}

void MetaMetrics::SetState(const ArbiterCounts& counts, size_t cut_points,
                           const std::vector<StoreSnapshot>& stores) {
  const auto set = [&](const char* what, const char* help, uint64_t value) {
    metrics_.Gauge(what, help).Set(static_cast<double>(value));
  };
  set("rows", "Rows that lookups may find", counts.rows);
  set("cut_points", "Lengths at which they serve", cut_points);
  set("fragments", "Slabs that one shard saved alone", counts.fragments);
  set("reservations", "Writes under way", counts.reservations);
  set("leases", "Rows pinned for a reader", counts.leases);
  set("waiters", "Callers that wait for a write", counts.waiters);
  set("namespaces", "Namespaces that have state", counts.namespaces);
  struct Bytes {
    uint64_t budget, live, reserved, deleting, quarantined;
  };
  std::array<Bytes, kTiers> tiers{};
  uint64_t serving = 0;
  for (const StoreSnapshot& store : stores) {
    if (store.state == StoreState::kLost) continue;
    serving += store.state == StoreState::kServing ? 1 : 0;
    Bytes& bytes = tiers[static_cast<size_t>(store.tier)];
    bytes.budget += store.budget_bytes;
    bytes.live += store.live_bytes;
    bytes.reserved += store.reserved_bytes;
    bytes.deleting += store.deleting_bytes;
    bytes.quarantined += store.quarantined_bytes;
  }
  set("stores_serving", "Stores whose inventory is complete", serving);
  for (size_t i = 0; i < tiers.size(); ++i) {
    const std::string tier(ToString(static_cast<Tier>(i)));
    const auto set_bytes = [&](const char* what, uint64_t value) {
      metrics_.Gauge("store_bytes", kStoreBytesHelp, {{"tier", tier}, {"what", what}})
          .Set(static_cast<double>(value));
    };
    set_bytes("budget", tiers[i].budget);
    set_bytes("live", tiers[i].live);
    set_bytes("in_flight", tiers[i].reserved);
    set_bytes("deleting", tiers[i].deleting);
    set_bytes("quarantined", tiers[i].quarantined);
  }
  MutexLock lock(&mutex_);
  for (const auto& [event, count] : counts.events) {
    uint64_t& before = events_[event];
    metrics_.Counter("events_total", "What the arbiter did, by what", {{"event", event}})
        .Increment(static_cast<double>(count - before));
    before = count;
  }
}

}  // namespace kvmesh::meta

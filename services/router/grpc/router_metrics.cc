#include "services/router/grpc/router_metrics.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace kvmesh::router {
namespace {

// The causes a shard may name; labels must stay few, whatever the wire says.
constexpr absl::string_view kMissCauses[] = {"unknown_session", "evicted_lru",    "evicted_bytes",
                                             "evicted_ttl",     "evicted_orphan", "poisoned",
                                             "epoch",           "layers",         "held",
                                             "digest",          "step",           "no_stored_row",
                                             "caching_disabled"};

// Results of saves and causes of cold prompts, but for those that a peer may spell freely.
constexpr absl::string_view kSaveResults[] = {
    "started", "already_exists", "being_written",    "deleting",    "too_large",
    "no_room", "meta_busy",      "no_store",         "refused",     "meta_unavailable",
    "quota",   "too_short",      "inside_character", "cannot_cut",  "late",
    "ended",   "route_changed",  "too_many",         "stream_lost", "dropped"};
constexpr absl::string_view kTiers[] = {"ram", "ram_file", "disk"};
constexpr absl::string_view kColdCauses[] = {"", "no_row", "too_short", "restore_failed",
                                             "disabled"};

// `value` up to its first ':' where that is known.
template <size_t kCount>
std::string Label(const absl::string_view (&known)[kCount], absl::string_view value) {
  const absl::string_view name = value.substr(0, value.find(':'));
  return std::find(std::begin(known), std::end(known), name) == std::end(known) ? "other"
                                                                                : std::string(name);
}

prometheus::Counter& LookupsOf(metrics::Metrics& all, const char* result) {
  return all.Counter("lookups_total", "Look-ups by their answer", {{"result", result}});
}

}  // namespace

RouterMetrics::RouterMetrics(metrics::Metrics& metrics)
    : all(metrics),
      time_to_first_token(all.Histogram("time_to_first_token_seconds",
                                        "From the request to its first token",
                                        metrics::LatencyBuckets())),
      time_per_output_token(all.Histogram("time_per_output_token_seconds",
                                          "Between two tokens of one generation",
                                          metrics::LatencyBuckets())),
      queued(all.Histogram("queued_seconds", "From the request to its admission",
                           metrics::LatencyBuckets())),
      running(all.Gauge("generations_running", "Generations admitted and not ended")),
      closing(all.Gauge("generations_closing",
                        "Generations that are answered; their saves go out and their streams end")),
      queue_depth(all.Gauge("queue_depth",
                            "Generations that wait: for admission, or for room at "
                            "the shards")),
      shards_seen(all.Gauge("shards_seen", "Shards whose Watch stream lives")),
      route_ready(all.Gauge("route_ready", "1 when a route covers all layers")),
      prompt_tokens(all.Counter("prompt_tokens_total", "Tokens of admitted prompts")),
      output_tokens(all.Counter("output_tokens_total", "Tokens generated")),
      reprefills(all.Counter("reprefills_total", "Prefills beyond the first of a generation")),
      replans(all.Counter("replans_total", "Routes given up in mid-generation")),
      link_retries(all.Counter("link_retries_total",
                               "Steps sent again on the same route after a broken stream")),
      refusals(all.Counter("refusals_total",
                           "Streams that shards refused for want of room; tried again")),
      watchdog_probes(all.Counter("watchdog_probes_total",
                                  "Steps without an answer for so long that the hops were asked")),
      repairs(all.Counter("repairs_total",
                          "Steps that went on from fragments of hops that lost their state")),
      lookup(all.Histogram("lookup_seconds", "From a look-up to the arbiter's answer",
                           metrics::LatencyBuckets())) {
  // There from the start, so that a rate of errors is zero and not unknown.
  for (const char* result : {"hit", "miss", "error"}) LookupsOf(all, result);
}

void RouterMetrics::Count(const Event& event) {
  switch (event.kind) {
    case EventKind::kCacheMiss: {
      const bool known = std::find(std::begin(kMissCauses), std::end(kMissCauses), event.detail) !=
                         std::end(kMissCauses);
      return all
          .Counter("cache_misses_total", "Cache misses that shards reported, by cause",
                   {{"cause", known ? event.detail : "other"}})
          .Increment();
    }
    case EventKind::kReprefill:
      return reprefills.Increment();
    case EventKind::kReplan:
      return replans.Increment();
    case EventKind::kLinkRetry:
      return link_retries.Increment();
    case EventKind::kRefused:
      return refusals.Increment();
    case EventKind::kWatchdog:
      return watchdog_probes.Increment();
    case EventKind::kRepair:
      return repairs.Increment();
  }
}

void RouterMetrics::CountSave(const SaveEnded& save) {
  all.Counter("saves_total", "Checkpoints wanted, by reason and what came of them",
              {{"reason", std::string(SaveReasonName(save.reason))},
               {"result", Label(kSaveResults, save.result)}})
      .Increment();
}

void RouterMetrics::CountReuse(const Reuse& reuse) {
  all.Counter("prompts_total", "Prompts by how much of them was restored",
              {{"outcome", std::string(OutcomeName(reuse.outcome))},
               {"cause", Label(kColdCauses, reuse.cause)}})
      .Increment();
  for (const auto& [tier, tokens] : reuse.cached_by_tier) {
    all.Counter("cached_tokens_total", "Prompt tokens that were restored, by tier",
                {{"tier", Label(kTiers, tier)}})
        .Increment(tokens);
  }
}

void RouterMetrics::CountLookup(const absl::StatusOr<std::optional<FoundRow>>& found,
                                absl::Duration latency) {
  lookup.Observe(absl::ToDoubleSeconds(latency));
  LookupsOf(all, !found.ok() ? "error" : found->has_value() ? "hit" : "miss").Increment();
}

void RouterMetrics::CountTenantTokens(const std::string& tenant, uint64_t tokens) {
  if (tenant.empty()) return;
  all.Counter("tenant_tokens_total", "Tokens of prompts and answers, by tenant",
              {{"tenant", tenant}})
      .Increment(static_cast<double>(tokens));
}

void RouterMetrics::CountTenantRefusal(const std::string& tenant, const std::string& limit) {
  if (tenant.empty()) return;
  all.Counter("tenant_refusals_total",
              "Generations, and saves (store_bytes), refused by a tenant's own limit",
              {{"tenant", tenant}, {"limit", limit}})
      .Increment();
}

void RouterMetrics::CountGeneration(absl::string_view result) {
  all.Counter("generations_total", "Generations ended, by finish reason or status code",
              {{"result", std::string(result)}})
      .Increment();
}

}  // namespace kvmesh::router

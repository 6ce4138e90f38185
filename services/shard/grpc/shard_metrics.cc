#include "services/shard/grpc/shard_metrics.h"

#include <string>

namespace kvmesh::shard {
namespace {

constexpr char kSessionsHelp[] = "Sessions held, by state";
constexpr char kComputeHelp[] = "Time the engine took for one frame, in seconds";

}  // namespace

ShardMetrics::ShardMetrics()
    : live_(metrics_.Gauge("sessions", kSessionsHelp, {{"state", "live"}})),
      idle_(metrics_.Gauge("sessions", kSessionsHelp, {{"state", "idle"}})),
      orphaned_(metrics_.Gauge("sessions", kSessionsHelp, {{"state", "orphaned"}})),
      bytes_(metrics_.Gauge("cache_bytes", "Bytes of session state held")),
      bytes_max_(metrics_.Gauge("cache_limit_bytes", "Most bytes of session state held")),
      streams_(metrics_.Gauge("streams", "Forward streams open")),
      queued_(metrics_.Gauge("queued_frames", "Frames that wait to run")),
      draining_(metrics_.Gauge("draining", "1 while the shard refuses new streams")),
      computing_(metrics_.Gauge("computing_seconds",
                                "For how long the engine has run the frame it is at, in seconds")),
      saves_in_flight_(metrics_.Gauge("saves_in_flight", "Snapshots that are being stored")),
      save_bytes_in_flight_(
          metrics_.Gauge("save_in_flight_bytes", "Bytes of state that are being stored")),
      prefill_seconds_(metrics_.Histogram("compute_seconds", kComputeHelp, metrics::StepBuckets(),
                                          {{"phase", "prefill"}})),
      decode_seconds_(metrics_.Histogram("compute_seconds", kComputeHelp, metrics::StepBuckets(),
                                         {{"phase", "decode"}})),
      wait_seconds_(metrics_.Histogram("wait_seconds", "Time a frame waited to run, in seconds",
                                       metrics::StepBuckets())),
      downstream_seconds_(
          metrics_.Histogram("downstream_seconds",
                             "Time from sending a step to the next hop to its answer, in seconds",
                             metrics::StepBuckets())),
      restore_seconds_(metrics_.Histogram(
          "restore_seconds", "Time to read, verify and take over stored state, in seconds",
          metrics::StepBuckets())) {
  for (int i = 0; i < kMissCauseCount; ++i) {
    misses_[i] = Make("cache_misses_total", "Frames whose state was not here, by cause",
                      {{"cause", std::string(MissCauseName(static_cast<MissCause>(i)))}});
  }
  for (int i = 0; i < kEvictCauseCount; ++i) {
    evictions_[i] = Make("evictions_total", "Sessions pushed out, by cause",
                         {{"cause", std::string(EvictCauseName(static_cast<EvictCause>(i)))}});
  }
  constexpr char kRefusals[] = "Streams refused for want of room, by reason";
  no_room_ = Make("refusals_total", kRefusals, {{"reason", "no_room"}});
  too_large_ = Make("refusals_total", kRefusals, {{"reason", "too_large"}});
  streams_total_ = Make("streams_total", "Forward streams accepted");
  superseded_ = Make("superseded_total", "Streams ended or refused by a newer epoch or attempt");
  replays_ = Make("replays_total", "Steps answered from the stored output after a broken link");
  steps_ = Make("steps_total", "Frames run by the engine");
  tokens_ = Make("tokens_total", "Rows run by the engine");
  cancelled_ = Make("steps_cancelled_total", "Frames cancelled while they ran");
  bad_logits_ = Make("bad_logits_total", "Steps that gave no usable logits");
  kv_saturated_ = Make("kv_saturated_total", "Keys and values beyond the range of their type");
  MakeCheckpointCounters();
}

void ShardMetrics::MakeCheckpointCounters() {
  constexpr char kSaves[] = "Saves by reason and result: done, or why not";
  for (size_t reason = 0; reason < kSaveReasonCount; ++reason) {
    const std::string name(SaveReasonName(static_cast<forward::SaveReason>(reason)));
    saves_done_[reason] = Make("saves_total", kSaves, {{"reason", name}, {"result", "done"}});
    saved_bytes_[reason] =
        Make("saved_bytes_total", "Bytes of state stored, by reason", {{"reason", name}});
    for (size_t drop = 0; drop < kSaveDropCount; ++drop) {
      const std::string result(SaveDropName(static_cast<SaveDrop>(drop)));
      saves_dropped_[drop][reason] =
          Make("saves_total", kSaves, {{"reason", name}, {"result", result}});
    }
  }
  constexpr char kRestores[] = "Restores by result: done, or why not";
  restores_done_ = Make("restores_total", kRestores, {{"result", "done"}});
  for (size_t fault = 0; fault < kRestoreFaultCount; ++fault) {
    const std::string result(RestoreFaultName(static_cast<RestoreFault>(fault)));
    restores_failed_[fault] = Make("restores_total", kRestores, {{"result", result}});
  }
  full_hits_ = Make("full_hits_total", "Prefills answered without running a layer");
}

void ShardMetrics::ExportCheckpoints(const Hop& hop) {
  const SaveCounters& saves = hop.saves().counters();
  for (size_t reason = 0; reason < kSaveReasonCount; ++reason) {
    saves_done_[reason].Follow(saves.done[reason]);
    saved_bytes_[reason].Follow(saves.done_bytes[reason]);
    for (size_t drop = 0; drop < kSaveDropCount; ++drop) {
      saves_dropped_[drop][reason].Follow(saves.dropped[drop][reason]);
    }
  }
  restores_done_.Follow(hop.counters().restores);
  for (size_t fault = 0; fault < kRestoreFaultCount; ++fault) {
    restores_failed_[fault].Follow(hop.counters().restores_failed[fault]);
  }
  full_hits_.Follow(hop.counters().full_hits);
  saves_in_flight_.Set(static_cast<double>(hop.saves().size()));
  save_bytes_in_flight_.Set(static_cast<double>(hop.saves().bytes()));
}

ShardMetrics::Follower ShardMetrics::Make(absl::string_view name, absl::string_view help,
                                          const metrics::Labels& labels) {
  return {.counter = &metrics_.Counter(name, help, labels)};
}

void ShardMetrics::Follower::Follow(uint64_t value) {
  if (value == seen) return;
  counter->Increment(static_cast<double>(value - seen));
  seen = value;
}

void ShardMetrics::Export(const Hop& hop, uint64_t kv_saturated) {
  const HopCounters& counters = hop.counters();
  const SessionCacheStore& store = hop.store();
  for (size_t i = 0; i < misses_.size(); ++i) misses_[i].Follow(counters.misses[i]);
  for (size_t i = 0; i < evictions_.size(); ++i) {
    evictions_[i].Follow(store.counters().evictions[i]);
  }
  no_room_.Follow(store.counters().no_room);
  too_large_.Follow(store.counters().too_large);
  streams_total_.Follow(counters.streams);
  superseded_.Follow(counters.superseded);
  replays_.Follow(counters.replays);
  steps_.Follow(counters.frames_run);
  tokens_.Follow(counters.tokens_run);
  cancelled_.Follow(counters.steps_cancelled);
  bad_logits_.Follow(counters.bad_logits);
  kv_saturated_.Follow(kv_saturated);
  live_.Set(static_cast<double>(store.count(SessionPhase::kLive)));
  idle_.Set(static_cast<double>(store.count(SessionPhase::kIdle)));
  orphaned_.Set(static_cast<double>(store.count(SessionPhase::kOrphaned)));
  bytes_.Set(static_cast<double>(store.bytes_used()));
  bytes_max_.Set(static_cast<double>(store.limits().bytes_max));
  streams_.Set(static_cast<double>(hop.streams()));
  queued_.Set(static_cast<double>(hop.queued_frames()));
  draining_.Set(hop.draining() ? 1 : 0);
  ExportCheckpoints(hop);
}

void ShardMetrics::ObserveCompute(bool decode, absl::Duration time) {
  (decode ? decode_seconds_ : prefill_seconds_).Observe(absl::ToDoubleSeconds(time));
}

void ShardMetrics::SetComputing(absl::Duration time) {
  computing_.Set(absl::ToDoubleSeconds(time));
}

void ShardMetrics::ObserveWait(absl::Duration time) {
  wait_seconds_.Observe(absl::ToDoubleSeconds(time));
}

void ShardMetrics::ObserveDownstream(absl::Duration time) {
  downstream_seconds_.Observe(absl::ToDoubleSeconds(time));
}

void ShardMetrics::ObserveRestore(absl::Duration time) {
  restore_seconds_.Observe(absl::ToDoubleSeconds(time));
}

}  // namespace kvmesh::shard

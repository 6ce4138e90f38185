// What one generation knows of checkpoints and has under way: the sequence's text and keys, the
// search for stored state, repairs, saves, and what came of it.
//
// Pure; not thread-safe. The generation decides when; this decides what, and queues the effects.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/text/tokenizer.h"
#include "services/router/core/checkpoint.h"
#include "services/router/core/checkpoint_saves.h"
#include "services/router/core/effects.h"
#include "services/router/core/key_text.h"
#include "services/router/core/repair.h"
#include "services/router/core/restore_plan.h"

namespace kvmesh::router {

// The same for all generations of a router; outlives them.
struct CheckpointSetup {
  CheckpointOptions options;
  const text::Tokenizer& tokenizer;
};

class GenerationCheckpoints {
 public:
  // `setup` and `effects` must outlive it.
  GenerationCheckpoints(const CheckpointSetup& setup, CheckpointUse use, const SessionId& session,
                        Effects& effects);
  GenerationCheckpoints(const GenerationCheckpoints&) = delete;
  GenerationCheckpoints& operator=(const GenerationCheckpoints&) = delete;

  // Every route of a generation has the same namespace. Before all else, again with each route.
  void SetRoute(const RoutePlan& route);
  // The ids before are not those of the next calls any more: `ids` below are not a continuation.
  void ForgetText();

  RestorePlanner& planner() { return planner_; }
  const RestorePlanner& planner() const { return planner_; }
  CheckpointSaves& saves() { return saves_; }
  FragmentRepair& repair() { return repair_; }

  // Looks for state of a prompt that may run on other ids of the same text, at most `tokens_max`.
  void LookUpPrompt(const std::vector<uint32_t>& ids, uint64_t tokens_max, MonoTime now);
  // Looks for state of exactly these ids.
  void LookUpSequence(const std::vector<uint32_t>& ids, MonoTime now);
  // Looks for fragments of the `lost` hops around step `step`, which feeds the last of `ids`.
  void BeginRepair(const std::vector<uint32_t>& ids, const std::vector<uint32_t>& lost,
                   uint32_t step, MonoTime now);

  // A prefill of all of `prompt` but its first `restored` tokens begins.
  void SaveCold(const std::vector<uint32_t>& prompt, uint64_t restored);
  // The hops hold all of `ids` but the last one, of which `generated` were generated. True: a
  // reservation was asked for whose Save the next step must not overtake.
  bool SaveContinued(const std::vector<uint32_t>& ids, uint32_t generated);
  // True: some reservation is not answered yet, and its Save can only go before Close.
  bool SaveFinish(const std::vector<uint32_t>& ids, uint64_t seen, uint64_t held);
  // The key that the finish save has, or would have if it were long enough; none without a
  // boundary.
  std::optional<Sha256Digest> FinishKey(const std::vector<uint32_t>& ids, uint64_t seen,
                                        uint64_t held);

  absl::Duration step_hold_max() const { return options_.step_hold_max; }
  absl::Duration finish_hold_max() const { return options_.reserve_wait; }
  absl::Duration touch_interval() const { return options_.touch_interval; }

  // The arbiter lets a lease or a reservation lapse after so long without a renewal.
  void Granted(absl::Duration ttl, MonoTime now);
  // Ends leases: the generation ends, or goes on without what it looked for.
  void StopLooking();

  void Tick(MonoTime now);
  MonoTime NextTimer() const;

 private:
  const KeyText& TextOf(absl::Span<const uint32_t> ids);
  Sha256Digest KeyAt(size_t tokens);
  void Reserve(forward::SaveReason reason, const SavePoint& point);
  std::shared_ptr<const PromptText> Prompt(const std::vector<uint32_t>& ids);
  std::vector<LeaseId> Leases() const;
  std::vector<LayerRange> HopLayers() const;

  const CheckpointOptions& options_;
  const text::Tokenizer& tokenizer_;
  const CheckpointUse use_;
  Effects& effects_;
  HoldIds ids_;
  RestorePlanner planner_;
  CheckpointSaves saves_;
  FragmentRepair repair_;

  RoutePlan route_;
  KeyText text_;
  std::optional<PrefixKeys> keys_;  // of the route's namespace
  bool parent_tried_ = false;
  uint32_t continued_at_ = 0;  // generated tokens at the last such save
  absl::Duration renew_interval_;
  MonoTime renew_at_ = absl::InfiniteDuration();
};

}  // namespace kvmesh::router

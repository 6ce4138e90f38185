// One generation as a state machine: plans, prefills, decodes, and recovers from whatever happens
// to the chain of shards until the tokens are there or the deadline has passed. Pure: time, jitter
// and all that the network says are arguments; what is to be done comes out as effects.
//
// Not thread-safe. The owner calls one input at a time, takes the effects, and performs them in
// their order without holding a lock that an input needs. Order of calls: Start once, then any
// input at any time; inputs that no longer matter (of an old attempt, after the end) are ignored.
// `finished()` stays false while a closed chain may still have to be cleaned up.
//
// Invariants: a token given to the sink never changes and is never given twice; step s+1 leaves
// only after the answer to s; every prefill is a new epoch, every stream a new attempt; between two
// tokens a broken link costs no prefill and a cache miss one, or the restore of one hop; no loop
// without a growing delay between its rounds; nothing about checkpoints, whatever befalls the
// arbiter or a store, changes an id or ends a generation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/error_info.h"
#include "common/base/ids.h"
#include "common/forward/frames.h"
#include "services/router/core/effects.h"
#include "services/router/core/generation_checkpoints.h"
#include "services/router/core/prefix_digester.h"
#include "services/router/core/route_planner.h"
#include "services/router/core/tenants.h"

namespace kvmesh::router {

// Where tokens go. Called from within OnAnswer, so that no step is sent beyond the last token
// wanted.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // The next token, in order. `output.token_id` is absent only if the tail gave none and its piece
  // is no single token. Anything but kNone ends the generation: nothing more is computed.
  virtual FinishReason OnToken(const forward::Output& output, MonoTime now) = 0;
  // How many of them the client has seen, or will see, the whole text of.
  virtual uint32_t tokens_shown() const = 0;
};

// For tails that answer text alone: the ids of all text generated without ids so far. `pieces` are
// the answers, in order.
using Retokenizer =
    std::function<absl::StatusOr<std::vector<uint32_t>>(absl::Span<const std::string> pieces)>;

struct GenerationSpec {
  SessionId session;
  std::vector<uint32_t> prompt;  // at least one id
  uint32_t max_tokens = 0;       // at least 1
  forward::SamplingOptions sampling;
  uint32_t vocab_size = 0;
  MonoTime deadline = absl::InfiniteDuration();
  bool stateless = false;  // wanted by the client
  CheckpointUse checkpoints;
  TenantPtr tenant = NoTenant();
  std::string traceparent;
  uint64_t jitter_seed = 0;
};

struct GenerationLimits {
  absl::Duration backoff_first = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(5);
  absl::Duration step_watchdog_min = absl::Seconds(5);
  absl::Duration step_wait_max =
      absl::Seconds(300);  // then the chain counts as broken, whoever answers
  absl::Duration unread_max = absl::Seconds(30);      // a client that does not read is cancelled
  absl::Duration close_wait_max = absl::Seconds(30);  // then the sessions are dropped hop by hop
  absl::Duration suspect_time = absl::Seconds(30);    // how long a hop that failed is avoided
  uint32_t mismatches_max = 5;  // re-plans after FAILED_PRECONDITION and the like
};

enum class Phase {
  kIdle,
  kWaitingForRoute,
  kLookup,  // for a checkpoint
  kRepair,  // waits for fragments
  kPrefill,
  kDecode,
  kClosing,
  kFinished
};
absl::string_view PhaseName(Phase phase);

// Counts since Start.
struct GenerationStats {
  uint32_t tokens = 0;  // given to the sink
  uint32_t reprefills = 0;
  uint32_t cache_misses = 0;
  uint32_t replans = 0;
  uint32_t link_retries = 0;
  uint32_t refusals = 0;  // RESOURCE_EXHAUSTED with a delay: waited and tried again
  uint32_t repairs = 0;   // hops that lost their state restored it, without a prefill
};

class Generation {
 public:
  // `sink` and `checkpoints` must outlive the generation. `retokenize` may be null where every tail
  // is known to give ids; `checkpoints` is null where there is no arbiter.
  Generation(GenerationSpec spec, GenerationLimits limits, TokenSink& sink, Retokenizer retokenize,
             const CheckpointSetup* checkpoints = nullptr);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  void Start(MonoTime now);
  void OnRoute(absl::StatusOr<RoutePlan> route, MonoTime now);
  void OnAnswer(StreamAttempt attempt, const forward::Answer& answer, MonoTime now);
  // The stream is over, with what the first hop (or the network) said. Not wanted after EndStream,
  // but harmless.
  void OnStreamEnd(StreamAttempt attempt, const absl::Status& status, MonoTime now);
  // `hop`: index in the ProbeSessions effect of this attempt.
  void OnSessionProbe(StreamAttempt attempt, size_t hop, bool answered, MonoTime now);
  // Answers to the effects of the same names. Late ones are welcome: what they pin is let go.
  void OnParent(MetaCall call, MonoTime now);
  void OnLookup(MetaCall call, absl::StatusOr<std::optional<FoundRow>> found, MonoTime now);
  void OnCheckpoint(MetaCall call, absl::StatusOr<CheckpointRead> read, MonoTime now);
  void OnFragment(MetaCall call, const absl::StatusOr<FoundFragment>& found, MonoTime now);
  void OnReserved(MetaCall call, const absl::StatusOr<Reservation>& reserved, MonoTime now);
  // Ends it as `status` (not OK).
  void Cancel(const absl::Status& status, MonoTime now);
  // False: too many tokens wait for the client; no further step is sent until it is true again.
  void SetReading(bool reading, MonoTime now);
  // Shards came or went: a generation that waits for a route asks again at once.
  void OnShardsChanged(MonoTime now);
  void Tick(MonoTime now);

  // When Tick wants to be called; infinite for never.
  MonoTime NextTimer() const;

  Effects TakeEffects();

  Phase phase() const { return phase_; }
  bool finished() const { return phase_ == Phase::kFinished; }
  // Done has been emitted.
  bool answered() const { return over(); }
  // Refused for want of room at the shards, until the next try.
  bool waits_for_room() const { return waits_for_room_; }
  const GenerationStats& stats() const { return stats_; }
  const GenerationSpec& spec() const { return spec_; }
  SessionEpoch epoch() const { return SessionEpoch{epoch_}; }
  StreamAttempt attempt() const { return StreamAttempt{attempt_}; }
  const std::vector<forward::HopRef>& hops() const { return route_.hops; }
  // Prompt and output. The prompt's ids are the effective ones: a restored row's, then the suffix.
  const std::vector<uint32_t>& history() const { return history_; }
  size_t prompt_tokens() const { return prompt_tokens_; }
  // How the prompt was served; final with the first token.
  const Reuse& reuse() const { return reuse_; }
  // Of the text that the next turn resumes from; set when Done is emitted. None without
  // checkpoints.
  const std::optional<Sha256Digest>& finish_key() const { return finish_key_; }

 private:
  struct Suspect {
    HopKey hop;
    MonoTime until;
  };

  // Routes (generation_recovery.cc).
  void AskRoute(MonoTime now);
  void WaitThenAskRoute(absl::Duration delay, MonoTime now);
  void Replan(const absl::Status& cause, MonoTime now);
  absl::Duration Backoff();
  void AddSuspect(const forward::HopRef& hop, MonoTime now);
  void AddSuspectNamedBy(const absl::Status& cause, MonoTime now);
  absl::Status CheckStatelessLength() const;

  // Checkpoints (generation_restore.cc).
  bool UsesCheckpoints() const;
  void LookUpOrPrefill(MonoTime now);
  void AfterLookup(MonoTime now);
  void UseChoice(const RestoreChoice& choice);
  void UseOwnPrompt();
  bool BeginRepair(MonoTime now);
  void AfterRepair(MonoTime now);
  bool OnFailedRestore(const ErrorInfo& info, MonoTime now);
  void MarkLost(const ErrorInfo& info);
  void OnOpened(const forward::Opened& opened);
  void OnRestored();
  void SendFullHit(MonoTime now);
  void PumpSaves();
  uint64_t SentTokens() const;
  bool HoldStep(MonoTime now);
  bool ReserveFinish(const absl::Status& status);
  void CheckHeldFrames(MonoTime now);
  void TouchOrphans(MonoTime now);

  // Streams and steps (generation.cc).
  void Run(MonoTime now);
  void StartPrefill(const RestoreChoice* choice, MonoTime now);
  void OpenNewStream(MonoTime now);
  void PumpPrefill(MonoTime now);
  void SendDecode(MonoTime now);
  void SendWholeSequence(MonoTime now);
  void NextStep(MonoTime now);
  void OnAck(MonoTime now);
  void OnOutput(const forward::Output& output, MonoTime now);
  absl::Status AppendToken(forward::Output* output);
  void StepSent(MonoTime now);

  // Failures (generation_recovery.cc).
  void OnBroken(const absl::Status& status, MonoTime now);
  void OnLostState(const absl::Status& status, MonoTime now);
  void OnRefused(absl::Duration delay, MonoTime now);
  void OnMismatch(const absl::Status& status, MonoTime now);
  void OnBadAnswer(const std::string& what, MonoTime now);
  void CutStream();
  void CheckWatchdog(MonoTime now);
  absl::Duration WatchdogLimit() const;
  MonoTime WatchdogTime() const;

  // The end (generation_recovery.cc).
  void Finish(const absl::Status& status, FinishReason reason, MonoTime now);
  void SendClose();
  void EndClosing(bool chain_ended);
  void DropEverywhere();
  MonoTime GiveUpTime() const;

  bool over() const { return phase_ == Phase::kClosing || phase_ == Phase::kFinished; }
  bool IsCurrent(StreamAttempt attempt) const {
    return stream_open_ && attempt == StreamAttempt{attempt_};
  }
  template <typename E>
  void Emit(E effect) {
    effects_.emplace_back(std::move(effect));
  }

  const GenerationSpec spec_;
  const GenerationLimits limits_;
  TokenSink& sink_;
  const Retokenizer retokenize_;

  Phase phase_ = Phase::kIdle;
  Effects effects_;
  GenerationStats stats_;
  MonoTime started_at_;

  // The sequence.
  std::vector<uint32_t> history_;
  size_t prompt_tokens_ = 0;  // of history_
  PrefixDigester digester_;
  size_t ids_known_ = 0;             // history_ up to here was never re-tokenised
  std::vector<std::string> pieces_;  // answers without ids since then

  // The route.
  RoutePlan route_;
  std::optional<RoutePin> pin_;
  std::vector<Suspect> suspects_;
  bool route_asked_ = false;
  MonoTime ask_route_at_ = absl::InfiniteDuration();
  absl::Status route_error_;  // why there is no route now
  bool waits_for_room_ = false;
  uint32_t waits_in_row_ = 0;  // re-plans and delays without a token in between
  uint32_t mismatches_in_row_ = 0;
  uint64_t jitter_state_;

  // The chain.
  uint64_t epoch_ = 0;
  uint64_t attempt_ = 0;
  bool stream_open_ = false;
  // The hops that hold, under epoch_, the state of history_ without its last id; empty: nobody
  // does.
  std::vector<forward::HopRef> state_hops_;
  bool step_in_flight_ = false;
  size_t prefill_sent_ = 0;  // tokens
  uint32_t chunks_in_flight_ = 0;
  bool prefill_work_done_ = false;  // some hop has run a chunk, ever
  bool reprefill_due_ = false;      // the next answer will have cost a prefill beyond the first
  bool stateless_for_good_ = false;
  uint32_t breaks_in_row_ = 0;
  uint32_t losses_in_row_ = 0;  // cache misses and the like

  // The watchdog.
  MonoTime step_sent_at_;
  MonoTime progress_at_;  // last frame sent or answer received
  MonoTime probe_at_ = absl::InfiniteDuration();
  std::vector<std::optional<bool>> probes_;  // by hop, while some are outstanding
  std::vector<absl::Duration> step_times_;   // of the last decode steps, a ring
  size_t step_times_next_ = 0;

  // The client.
  bool reading_ = true;
  MonoTime unread_since_ = absl::InfiniteDuration();

  MonoTime close_by_ = absl::InfiniteDuration();

  // Checkpoints.
  std::optional<GenerationCheckpoints> checkpoints_;  // none: no arbiter, or not wanted
  Reuse reuse_;
  std::optional<Sha256Digest> finish_key_;
  std::vector<forward::HopRestore> restore_;  // of the current stream's Open
  size_t restores_open_ = 0;                  // hops that have not said that they have it
  bool repairing_ = false;                    // the next answer completes a repair
  uint32_t repairs_in_row_ = 0;
  // The next step, or after Done the Close, waits for a reservation at most until then.
  MonoTime held_until_ = absl::InfiniteDuration();
  MonoTime touch_at_ = absl::InfiniteDuration();
};

}  // namespace kvmesh::router

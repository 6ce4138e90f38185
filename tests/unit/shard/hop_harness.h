// A Hop with the toy engine behind it, driven by hand: frames in, effects out, one job at a time.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error_info.h"
#include "common/base/sha256.h"
#include "services/shard/core/hop.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::shard {

class HopHarness {
 public:
  static constexpr uint32_t kLayers = 6;

  explicit HopHarness(LayerRange layers = {0, kLayers}, StoreLimits limits = Limits(),
                      bool caching = true, const CheckpointOptions& checkpoints = {})
      : engine_({.layers = layers}), hop_(Options(layers, limits, caching, checkpoints)) {}

  static StoreLimits Limits() {
    return {.sessions_max = 3, .bytes_max = 10000, .block_tokens = 1, .bytes_per_token = 1};
  }
  static SessionId Session(uint8_t number) {
    SessionId id;
    id.mutable_data()[0] = number;
    return id;
  }
  static InstanceId Instance(uint8_t number) {
    InstanceId id;
    id.mutable_data()[0] = number;
    return id;
  }

  forward::Open MakeOpen(uint8_t session, std::vector<uint32_t> history, uint64_t epoch = 1,
                         uint64_t attempt = 1) const {
    const LayerRange own = hop_.options().layers;
    forward::Open open{.session = Session(session),
                       .epoch = SessionEpoch{epoch},
                       .attempt = StreamAttempt{attempt},
                       .hops = {{.address = "self", .instance = Instance(1), .layers = own}},
                       .hop_index = own.begin == 0 ? 0u : 1u,
                       .history = std::move(history),
                       .reserve_tokens = 100};
    open.prompt_tokens = static_cast<uint32_t>(open.history.size());
    if (own.end < kLayers) {
      open.hops.push_back(
          {.address = "next", .instance = Instance(2), .layers = {own.end, kLayers}});
    }
    return open;
  }
  // `all`: the ids of the whole sequence; the frame holds those from past_len on, up to `end`.
  forward::Compute Frame(forward::CacheMode mode, const std::vector<uint32_t>& all,
                         uint64_t past_len, size_t end, uint32_t step, bool want_logits) const {
    const auto begin = all.begin();
    forward::Compute compute{.cache_mode = mode,
                             .layers = hop_.options().layers,
                             .step = step,
                             .tokens = {begin + static_cast<std::ptrdiff_t>(past_len),
                                        begin + static_cast<std::ptrdiff_t>(end)},
                             .want_logits = want_logits};
    if (mode != forward::CacheMode::kStateless) {
      compute.past_len = past_len;
      compute.prefix_digest = PrefixDigest(TokensSha256(absl::MakeConstSpan(all).first(past_len)));
    }
    if (hop_.options().layers.begin > 0) {
      compute.hidden.assign(compute.tokens.size() * testing::kToyHiddenSize * sizeof(float), '\0');
    }
    return compute;
  }
  forward::Compute Prefill(const std::vector<uint32_t>& all, uint64_t past_len, size_t end,
                           bool want_logits) const {
    return Frame(forward::CacheMode::kPrefill, all, past_len, end, 0, want_logits);
  }
  // The step that runs the last of `all`.
  forward::Compute Decode(const std::vector<uint32_t>& all, uint32_t step) const {
    return Frame(forward::CacheMode::kDecode, all, all.size() - 1, all.size(), step, true);
  }

  void Send(uint64_t stream, forward::Frame frame) {
    hop_.OnFrame(StreamId{stream}, std::move(frame), now);
    Collect();
  }
  void Open(uint64_t stream, uint8_t session, std::vector<uint32_t> history, uint64_t epoch = 1,
            uint64_t attempt = 1) {
    Send(stream, MakeOpen(session, std::move(history), epoch, attempt));
  }
  void Lose(uint64_t stream) {
    hop_.OnUpLost(StreamId{stream}, now);
    Collect();
  }
  void Down(uint64_t stream, forward::Answer answer) {
    hop_.OnDownAnswer(StreamId{stream}, std::move(answer), now);
    Collect();
  }
  void DownEnds(uint64_t stream, const absl::Status& status) {
    hop_.OnDownEnd(StreamId{stream}, status, now);
    Collect();
  }
  // The job that starts now, if any.
  std::optional<Job> Start() {
    std::optional<Job> job = hop_.NextJob(now);
    Collect();
    return job;
  }
  void Finish(Job& job) {
    const StreamId stream = job.stream;
    hop_.OnJobDone(stream, runner_.Run(job), now);
    Collect();
  }
  // Runs everything that may run. Returns how many jobs that were.
  int RunAll() {
    int jobs = 0;
    while (std::optional<Job> job = Start()) {
      Finish(*job);
      ++jobs;
    }
    return jobs;
  }
  void Drop(uint8_t session, uint64_t epoch) {
    hop_.DropSession(Session(session), SessionEpoch{epoch}, now);
    Collect();
  }
  void SaveStarts(SaveId id) {
    hop_.OnSaveStarted(id);
    Collect();
  }
  void SaveEnds(SaveId id, std::optional<SaveDrop> drop = std::nullopt) {
    hop_.OnSaveEnded(id, drop, now);
    Collect();
  }
  void RestoreEnds(uint64_t stream, RestoreResult result) {
    hop_.OnRestoreDone(StreamId{stream}, std::move(result), now);
    Collect();
  }
  void Drain() {
    hop_.Drain(now);
    Collect();
  }
  void Tick(absl::Duration later) {
    now += later;
    hop_.Tick(now);
    Collect();
  }

  // What came out since the last call, of one kind.
  template <typename E>
  std::vector<E> Take() {
    std::vector<E> taken;
    std::vector<Effect> rest;
    for (Effect& effect : effects_) {
      if (auto* e = std::get_if<E>(&effect)) {
        taken.push_back(std::move(*e));
      } else {
        rest.push_back(std::move(effect));
      }
    }
    effects_ = std::move(rest);
    return taken;
  }
  template <typename A>
  std::vector<A> TakeAnswers() {
    std::vector<A> taken;
    std::vector<Effect> rest;
    for (Effect& effect : effects_) {
      auto* up = std::get_if<AnswerUp>(&effect);
      auto* answer = up == nullptr ? nullptr : std::get_if<A>(&up->answer);
      if (answer != nullptr) {
        taken.push_back(std::move(*answer));
      } else {
        rest.push_back(std::move(effect));
      }
    }
    effects_ = std::move(rest);
    return taken;
  }
  // Ids of the tokens answered since the last call.
  std::vector<uint32_t> TakeTokens() {
    std::vector<uint32_t> ids;
    for (const forward::Output& output : TakeAnswers<forward::Output>()) {
      ids.push_back(output.token_id.value_or(0));
    }
    return ids;
  }
  // The status a stream ended with; nothing when none ended.
  std::optional<absl::Status> TakeEnd() {
    std::vector<EndUp> ends = Take<EndUp>();
    EXPECT_LE(ends.size(), 1u);
    if (ends.empty()) return std::nullopt;
    return ends.front().status;
  }
  std::string TakeEndReason() {
    const std::optional<absl::Status> end = TakeEnd();
    if (!end.has_value()) return "(open)";
    const std::string reason = ReasonOf(*end);
    return reason.empty() ? std::string(absl::StatusCodeToString(end->code())) : reason;
  }
  // Of an ended stream: the cause of the cache miss.
  std::string TakeMissCause() {
    const std::optional<absl::Status> end = TakeEnd();
    if (!end.has_value()) return "(open)";
    std::optional<ErrorInfo> info = ErrorInfoOf(*end);
    return info.has_value() && info->reason == reason::kCacheMiss ? info->metadata["cause"]
                                                                  : "(no miss)";
  }
  std::optional<SessionView> View(uint8_t session) const {
    return hop_.store().View(Session(session), now);
  }
  std::vector<Effect> TakeAll() { return std::exchange(effects_, {}); }

  Hop& hop() { return hop_; }
  testing::ToyEngine& engine() { return engine_; }
  const testing::ToyVocabulary& vocabulary() const { return vocabulary_; }

  MonoTime now = absl::Seconds(100);

 private:
  HopOptions Options(LayerRange layers, const StoreLimits& limits, bool caching,
                     const CheckpointOptions& checkpoints) const {
    return {.instance = Instance(1),
            .layers = layers,
            .layer_count = kLayers,
            .hidden_size = testing::kToyHiddenSize,
            .vocab_size = testing::kToyVocabSize,
            .context_length = 200,
            .quant = testing::kToyQuant,
            .features = {"known"},
            .caching = caching,
            .streams_max = 8,
            .store = limits,
            .checkpoints = checkpoints,
            .vocabulary = &vocabulary_,
            .peer_allowed = [](const std::string& address) { return address == "next"; }};
  }
  void Collect() {
    for (Effect& effect : hop_.TakeEffects()) effects_.push_back(std::move(effect));
  }

  testing::ToyEngine engine_;
  testing::ToyVocabulary vocabulary_;
  JobRunner runner_{engine_, vocabulary_};
  Hop hop_;
  std::vector<Effect> effects_;
};

inline const std::vector<uint32_t> kHopPrompt = {5, 6, 7, 8};

// The first `count` tokens that the toy model gives after kHopPrompt, and the whole sequence with
// them.
inline std::vector<uint32_t> Generated(uint32_t count) {
  return testing::ToyGenerate(kHopPrompt, count);
}
inline std::vector<uint32_t> Sequence(uint32_t generated) {
  std::vector<uint32_t> all = kHopPrompt;
  const std::vector<uint32_t> more = Generated(generated);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Opens stream 1 for session 1 and runs the prompt.
inline void RunPrompt(HopHarness& h) {
  h.Open(1, 1, kHopPrompt);
  h.Send(1, h.Prefill(kHopPrompt, 0, 4, true));
  ASSERT_EQ(h.RunAll(), 1);
  ASSERT_EQ(h.TakeTokens(), Generated(1));
}

}  // namespace kvmesh::shard

// Plays network and clock for one Generation: takes its effects apart and answers in the test's
// name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "services/router/core/generation.h"

namespace kvmesh::router {

class RecordingSink final : public TokenSink {
 public:
  FinishReason OnToken(const forward::Output& output, MonoTime) override {
    tokens.push_back(output.token_id.value_or(~0u));
    pieces.push_back(output.piece);
    return tokens.size() == stop_after ? FinishReason::kStop : FinishReason::kNone;
  }
  uint32_t tokens_shown() const override {
    return static_cast<uint32_t>(std::min(tokens.size(), shown_max));
  }
  std::vector<uint32_t> tokens;
  std::vector<std::string> pieces;
  size_t stop_after = ~size_t{0};
  size_t shown_max = ~size_t{0};
};

inline forward::HopRef Hop(const std::string& address, uint32_t begin, uint32_t end,
                           uint8_t instance = 1) {
  forward::HopRef hop{.address = address, .layers = {begin, end}};
  hop.instance.mutable_data()[0] = instance;
  return hop;
}

inline RoutePlan TwoHops() {
  RoutePlan plan{.hops = {Hop("a", 0, 4), Hop("b", 4, 8)},
                 .numerics_id = "n1",
                 .hidden_size = 4,
                 .context_length = 2048};
  plan.cache_namespace.quant = "q";
  return plan;
}

inline absl::Status Miss(const std::string& cause = "evicted_lru") {
  return WithErrorInfo(absl::AbortedError("miss"), {.reason = std::string(reason::kCacheMiss),
                                                    .metadata = {{"cause", cause}, {"hop", "1"}}});
}

inline absl::Status HopUnavailable(const std::string& address) {
  return WithErrorInfo(
      absl::UnavailableError(absl::StrCat(address, " is gone")),
      {.reason = std::string(reason::kHopUnavailable), .metadata = {{"address", address}}});
}

inline absl::Status Lost() {
  return absl::UnavailableError("socket closed");
}

class GenerationScript {
 public:
  static GenerationSpec Spec(size_t prompt_tokens = 3, uint32_t max_tokens = 100) {
    GenerationSpec spec{.max_tokens = max_tokens, .vocab_size = 1000, .jitter_seed = 7};
    spec.session.mutable_data()[0] = 9;
    for (size_t i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(static_cast<uint32_t>(i + 1));
    return spec;
  }

  explicit GenerationScript(GenerationSpec spec = Spec(), Retokenizer retokenize = nullptr,
                            const CheckpointSetup* checkpoints = nullptr)
      : generation(std::move(spec), limits, sink, std::move(retokenize), checkpoints) {}

  // Start, and the first route.
  void Run(RoutePlan plan = TwoHops()) {
    generation.Start(now);
    Collect();
    Route(std::move(plan));
  }
  void Route(absl::StatusOr<RoutePlan> plan) {
    ASSERT_TRUE(Has<NeedRoute>()) << "no route was asked for";
    effects.clear();
    generation.OnRoute(std::move(plan), now);
    Collect();
  }
  void Answer(forward::Answer answer) {
    effects.clear();
    generation.OnAnswer(generation.attempt(), answer, now);
    Collect();
  }
  // The answer to the current step.
  void Token(uint32_t id) {
    Answer(forward::Output{.step = generation.stats().tokens, .token_id = id});
  }
  void End(const absl::Status& status) {
    effects.clear();
    generation.OnStreamEnd(generation.attempt(), status, now);
    Collect();
  }
  // Moves to the next timer and ticks.
  void Wait() {
    ASSERT_LT(generation.NextTimer(), absl::InfiniteDuration());
    effects.clear();
    waited = std::max(generation.NextTimer(), now) - now;
    now += waited;
    generation.Tick(now);
    Collect();
  }
  void Collect() {
    for (Effect& effect : generation.TakeEffects()) effects.push_back(std::move(effect));
  }

  template <typename E>
  std::vector<E> All() const {
    std::vector<E> found;
    for (const Effect& effect : effects) {
      if (const E* one = std::get_if<E>(&effect)) found.push_back(*one);
    }
    return found;
  }
  template <typename E>
  bool Has() const {
    return !All<E>().empty();
  }
  template <typename E>
  E Only() const {
    const std::vector<E> all = All<E>();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? E() : all[0];
  }
  template <typename F>
  std::vector<F> Frames() const {
    std::vector<F> found;
    for (const SendFrame& send : All<SendFrame>()) {
      if (const F* one = std::get_if<F>(&send.frame)) found.push_back(*one);
    }
    return found;
  }
  std::vector<forward::Compute> Computes() const { return Frames<forward::Compute>(); }
  forward::Compute Compute() const {
    const std::vector<forward::Compute> all = Computes();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? forward::Compute() : all[0];
  }
  bool Dropped() const {
    const std::vector<forward::Close> closes = Frames<forward::Close>();
    return closes.size() == 1 && closes[0].disposition == forward::Disposition::kDrop;
  }

  RecordingSink sink;
  GenerationLimits limits;
  MonoTime now = absl::Seconds(1000);
  absl::Duration waited;
  std::vector<Effect> effects;  // of the last input
  Generation generation;
};

}  // namespace kvmesh::router

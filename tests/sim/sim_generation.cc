#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/sim/mesh_sim.h"

namespace kvmesh::sim {
namespace {

constexpr absl::Duration kProbeTimeout = absl::Seconds(2);

router::GenerationSpec SpecOf(size_t index, const GenerationOptions& options, MonoTime now,
                              uint64_t seed) {
  router::GenerationSpec spec{.prompt = options.prompt,
                              .max_tokens = options.tokens,
                              .sampling = options.sampling,
                              .vocab_size = testing::kToyVocabSize,
                              .deadline = now + options.start_after + options.deadline,
                              .stateless = options.stateless,
                              .checkpoints = options.checkpoints,
                              .jitter_seed = seed};
  spec.session.mutable_data()[0] = static_cast<uint8_t>(index + 1);
  return spec;
}

absl::StatusOr<std::vector<uint32_t>> Retokenize(absl::Span<const std::string> pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return testing::ToyIds(text);
}

}  // namespace

SimGeneration::SimGeneration(MeshSim& mesh, size_t index, const GenerationOptions& options,
                             uint64_t seed)
    : mesh_(mesh),
      options_(options),
      generation_(SpecOf(index, options, mesh.events().now(), seed), {}, *this, Retokenize,
                  mesh.checkpoints()) {}

void SimGeneration::Start() {
  mesh_.events().After(options_.start_after, [this] {
    Input([this](router::Generation& generation) { generation.Start(mesh_.events().now()); });
    if (!options_.cancel_after.has_value()) return;
    mesh_.events().After(*options_.cancel_after, [this] {
      Input([this](router::Generation& generation) {
        generation.Cancel(absl::CancelledError("by the client"), mesh_.events().now());
      });
    });
  });
}

router::FinishReason SimGeneration::OnToken(const forward::Output& output, MonoTime now) {
  if (answer_.has_value()) ADD_FAILURE() << "a token after the answer";
  if (!output.token_id.has_value()) {
    ADD_FAILURE() << "a token without an id";
    return router::FinishReason::kLength;
  }
  ids_.push_back(*output.token_id);
  if (output.finished) return router::FinishReason::kEos;
  return ids_.size() >= options_.tokens ? router::FinishReason::kLength
                                        : router::FinishReason::kNone;
}

void SimGeneration::Input(const std::function<void(router::Generation&)>& input) {
  input(generation_);
  Perform();
  ScheduleTick();
}

void SimGeneration::Perform() {
  for (router::Effect& effect : generation_.TakeEffects()) {
    std::visit([this](auto& one) { Do(std::move(one)); }, effect);
  }
}

void SimGeneration::Do(router::NeedRoute effect) {
  mesh_.events().After(absl::Microseconds(10), [this, request = std::move(effect.request)] {
    Input([&](router::Generation& generation) {
      generation.OnRoute(mesh_.Plan(request), mesh_.events().now());
    });
  });
}

void SimGeneration::Do(router::OpenStream effect) {
  const StreamAttempt attempt = effect.attempt;
  const StreamKey key =
      mesh_.network().Call("", effect.open.hops[0].address,
                           {.on_answer =
                                [this, attempt](forward::Answer answer) {
                                  auto* output = std::get_if<forward::Output>(&answer);
                                  if (output != nullptr && !options_.token_ids)
                                    output->token_id.reset();
                                  Input([&](router::Generation& generation) {
                                    generation.OnAnswer(attempt, answer, mesh_.events().now());
                                  });
                                },
                            .on_end =
                                [this, attempt](const absl::Status& status) {
                                  Input([&](router::Generation& generation) {
                                    generation.OnStreamEnd(attempt, status, mesh_.events().now());
                                  });
                                }});
  if (!streams_.emplace(attempt, key).second) ADD_FAILURE() << "an attempt was used twice";
  mesh_.network().SendFrame(key, std::move(effect.open));
}

void SimGeneration::Do(router::SendFrame effect) {
  mesh_.network().SendFrame(streams_.at(effect.attempt), std::move(effect.frame));
}

void SimGeneration::Do(const router::EndStream& effect) {
  mesh_.network().Cancel(streams_.at(effect.attempt));
}

void SimGeneration::Do(const router::ProbeSessions& effect) {
  for (size_t i = 0; i < effect.hops.size(); ++i) {
    SimShard* process = mesh_.Process(effect.hops[i]);
    const bool answers = process != nullptr && process->Answers();
    mesh_.events().After(answers ? 2 * mesh_.Latency() : kProbeTimeout,
                         [this, i, answers, attempt = effect.attempt] {
                           Input([&](router::Generation& generation) {
                             generation.OnSessionProbe(attempt, i, answers, mesh_.events().now());
                           });
                         });
  }
}

void SimGeneration::Do(const router::DropSession& effect) {
  mesh_.events().After(mesh_.Latency(), [this, effect] {
    SimShard* process = mesh_.Process(effect.hop);
    if (process != nullptr) process->DropSession(effect.session, effect.epoch);
  });
}

void SimGeneration::Do(const router::Event& effect) {
  if (effect.kind == router::EventKind::kCacheMiss) miss_causes_.push_back(effect.detail);
}

void SimGeneration::Do(const router::Done& effect) {
  if (answer_.has_value()) ADD_FAILURE() << "a second answer: " << effect.status;
  answer_ = effect.status;
  answered_at_ = mesh_.events().now();
}

template <typename T>
void SimGeneration::Ask(absl::Duration timeout, std::function<absl::StatusOr<T>()> ask,
                        std::function<void(router::Generation&, absl::StatusOr<T>)> input) {
  const absl::Duration there = mesh_.Latency();
  const absl::Duration back = mesh_.Latency();
  const auto answer = [this, input](const absl::StatusOr<T>& result) {
    Input([&](router::Generation& generation) { input(generation, result); });
  };
  mesh_.events().After(there, [this, ask, answer, back, timeout, there] {
    const absl::Duration left = timeout - there;
    if (!mesh_.arbiter().away(mesh_.events().now())) {
      const absl::StatusOr<T> result = ask();
      mesh_.events().After(back, [answer, result] { answer(result); });
    } else if (back < there) {  // as good as a coin
      mesh_.events().After(back, [answer] { answer(absl::UnavailableError("refused")); });
    } else {
      mesh_.events().After(left, [answer] { answer(absl::DeadlineExceededError("no answer")); });
    }
  });
}

// Nothing is ever in flight for a parent here: the answer says so at once.
void SimGeneration::Do(const router::AwaitParent& effect) {
  mesh_.events().After(2 * mesh_.Latency(), [this, call = effect.call] {
    Input([this, call](router::Generation& generation) {
      generation.OnParent(call, mesh_.events().now());
    });
  });
}

void SimGeneration::Do(const router::LookupRow& effect) {
  Ask<std::optional<router::FoundRow>>(
      effect.timeout, [this, effect] { return mesh_.arbiter().Lookup(effect); },
      [this, call = effect.call](router::Generation& generation, auto found) {
        generation.OnLookup(call, std::move(found), mesh_.events().now());
      });
}

void SimGeneration::Do(const router::ReadCheckpoint& effect) {
  Ask<router::CheckpointRead>(
      effect.timeout,
      [this, effect] { return mesh_.arbiter().Read(effect, mesh_.checkpoints()->tokenizer); },
      [this, call = effect.call](router::Generation& generation, auto read) {
        generation.OnCheckpoint(call, std::move(read), mesh_.events().now());
      });
}

void SimGeneration::Do(const router::AwaitFragment& effect) {
  TryFragment(effect, mesh_.events().now() + effect.appear_wait);
}

void SimGeneration::TryFragment(const router::AwaitFragment& effect, MonoTime until) {
  Ask<router::FoundFragment>(
      effect.appear_wait, [this, effect] { return mesh_.arbiter().Fragment(effect); },
      [this, effect, until](router::Generation& generation, const auto& found) {
        if (absl::IsNotFound(found.status()) && mesh_.events().now() < until) {
          return TryFragment(effect, until);
        }
        generation.OnFragment(effect.call, found, mesh_.events().now());
      });
}

void SimGeneration::Do(const router::ReserveRow& effect) {
  Ask<router::Reservation>(
      effect.timeout, [this, effect] { return mesh_.arbiter().Reserve(effect); },
      [this, call = effect.call](router::Generation& generation, const auto& reserved) {
        generation.OnReserved(call, reserved, mesh_.events().now());
      });
}

void SimGeneration::Do(const router::CancelReservation& effect) {
  mesh_.events().After(mesh_.Latency(), [this, effect] { mesh_.arbiter().Cancel(effect); });
}

void SimGeneration::Do(const router::EndLease& effect) {
  mesh_.events().After(mesh_.Latency(), [this, effect] { mesh_.arbiter().End(effect); });
}

void SimGeneration::Do(const router::SaveEnded& effect) {
  if (effect.result == "started") ++saves_started_;
}

void SimGeneration::ScheduleTick() {
  const MonoTime due = generation_.NextTimer();
  if (due >= tick_at_) return;
  tick_at_ = due;
  const absl::Duration wait = std::max(due - mesh_.events().now(), absl::ZeroDuration());
  mesh_.events().After(wait, [this, due] {
    if (tick_at_ != due) return;
    tick_at_ = absl::InfiniteDuration();
    Input([this](router::Generation& generation) { generation.Tick(mesh_.events().now()); });
  });
}

}  // namespace kvmesh::sim

// Sessions of a mesh under load, cancellation, broken links and dead shards.
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "tests/mesh/mesh_fixture.h"

namespace kvmesh::testing {
namespace {

constexpr int kLayersOfAShard = 3;

double Evictions(MeshShard& shard, const std::string& cause) {
  return shard.Counter("evictions_total", {{"cause", cause}});
}

TEST(MeshSessions, TwoRoutersWithEightGenerationsEachFinishUnderACapOfEightWithoutEvictions) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  mesh.AddRouter();
  mesh.shard(1).gate.Close();  // nobody ends before somebody was refused
  std::vector<Request> requests;
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < 16; ++i) {
    requests.push_back({.prompt = absl::StrCat("generation ", i), .max_tokens = 20});
    answers.push_back(mesh.Start(requests.back(), i % 2));
  }
  EXPECT_TRUE(Eventually([&] { return mesh.RouterCounter("refusals_total") >= 1; }));
  mesh.shard(1).gate.Open();
  for (size_t i = 0; i < answers.size(); ++i) {
    const Answer answer = answers[i].get();
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.ids, Undisturbed(requests[i]));
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Evictions(mesh.shard(i), "lru"), 0);
    EXPECT_EQ(Evictions(mesh.shard(i), "bytes"), 0);
  }
  EXPECT_GE(mesh.shard(0).Counter("refusals_total", {{"reason", "no_room"}}), 1);
  EXPECT_EQ(mesh.RouterCounter("reprefills_total"), 0);
  EXPECT_TRUE(mesh.NothingHeld());
}

TEST(MeshSessions, AGenerationThatFitsNoEmptyShardIsRefusedForGood) {
  Mesh mesh({{.layers = {0, 3}, .bytes_max = 4096}, {.layers = {3, 6}, .bytes_max = 4096}});
  mesh.AddRouter();
  const Answer answer = mesh.Generate({.max_tokens = 100});
  EXPECT_TRUE(absl::IsResourceExhausted(answer.status)) << answer.status;
  EXPECT_FALSE(RetryDelayOf(answer.status).has_value());
  EXPECT_TRUE(mesh.Generate({.prompt = "a", .max_tokens = 2}).status.ok());
}

// Stops the second shard in the step after `steps` steps, lets `end` end the generation, and checks
// that nothing but the rest of that step runs and nothing stays.
void EndsWithinAStep(int steps, const std::function<void(Mesh&)>& end, absl::Duration timeout,
                     absl::StatusCode code) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  std::atomic<int> frames = 0;
  mesh.shard(1).hooks.on_frame = [&](v1::ForwardRequest& frame) {
    if (frame.has_compute() && frames++ == steps) mesh.shard(1).gate.Close();
    return Passage::kPass;
  };
  std::future<Answer> answer = mesh.Start({.max_tokens = 100, .timeout = timeout});
  ASSERT_TRUE(Eventually([&] { return mesh.shard(1).gate.waiting() > 0; }));
  end(mesh);
  EXPECT_EQ(answer.get().status.code(), code);
  // The first shard is idle and frees at once; the second one within its step.
  EXPECT_TRUE(Eventually([&] { return mesh.shard(0).Sessions().empty(); }));
  const int before = mesh.shard(1).gate.passed();
  mesh.shard(1).gate.Open();
  EXPECT_TRUE(mesh.NothingHeld());
  EXPECT_LE(mesh.shard(1).gate.passed() - before, kLayersOfAShard);
}

void Cancel(Mesh& mesh) {
  mesh.CancelNewest();
}
void WaitForDeadline(Mesh& /*mesh*/) {}

TEST(MeshSessions, ACancelInPrefillFreesAllHopsWithinAStep) {
  EndsWithinAStep(0, Cancel, absl::Seconds(60), absl::StatusCode::kCancelled);
}

TEST(MeshSessions, ACancelInDecodeFreesAllHopsWithinAStep) {
  EndsWithinAStep(3, Cancel, absl::Seconds(60), absl::StatusCode::kCancelled);
}

TEST(MeshSessions, ADeadlineInPrefillFreesAllHopsWithinAStep) {
  EndsWithinAStep(0, WaitForDeadline, absl::Seconds(2), absl::StatusCode::kDeadlineExceeded);
}

TEST(MeshSessions, ADeadlineInDecodeFreesAllHopsWithinAStep) {
  EndsWithinAStep(3, WaitForDeadline, absl::Seconds(2), absl::StatusCode::kDeadlineExceeded);
}

TEST(MeshSessions, CancelGenerationEndsItAsItsClientWould) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  mesh.shard(1).gate.Close();
  std::future<Answer> answer = mesh.Start({.max_tokens = 100});
  ASSERT_TRUE(Eventually([&] { return mesh.shard(1).gate.waiting() > 0; }));
  ASSERT_TRUE(mesh.CancelOnly().ok());
  EXPECT_TRUE(absl::IsCancelled(answer.get().status));
  mesh.shard(1).gate.Open();
  EXPECT_TRUE(mesh.NothingHeld());
}

class LinkCut : public ::testing::TestWithParam<size_t> {};

TEST_P(LinkCut, InDecodeKeepsTheStateForTheRetryAndCostsNoPrefill) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  std::atomic<int> answers = 0;
  std::atomic<int> frames = 0;
  mesh.shard(GetParam()).hooks = {.on_frame =
                                      [&](v1::ForwardRequest& frame) {
                                        const bool strike = frame.has_compute() && frames++ == 5;
                                        return strike ? Passage::kCut : Passage::kPass;
                                      },
                                  .on_answer =
                                      [&](v1::ForwardResponse& answer) {
                                        const bool strike = answer.has_output() && answers++ == 8;
                                        return strike ? Passage::kCut : Passage::kPass;
                                      }};
  const Request request{.max_tokens = 20};
  const Answer answer = mesh.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, Undisturbed(request));
  EXPECT_EQ(mesh.RouterCounter("reprefills_total"), 0);
  EXPECT_EQ(mesh.RouterCounter("link_retries_total"), 2);
  EXPECT_TRUE(mesh.NothingHeld());
}
INSTANTIATE_TEST_SUITE_P(OfEitherLink, LinkCut, ::testing::Values(0, 1));

TEST(MeshSessions, AnOrphanStaysForItsTtlAndIsGoneAfterIt) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  std::atomic<int> frames = 0;
  mesh.shard(0).hooks.on_frame = [&](v1::ForwardRequest& frame) {
    if (!frame.has_compute() || ++frames < 4) return Passage::kPass;
    // The router reaches nobody any more.
    mesh.shard(0).proxy().SetDown(true);
    return Passage::kCut;
  };
  std::future<Answer> answer = mesh.Start({.max_tokens = 100});
  const auto orphans = [&] {
    for (size_t i = 0; i < 2; ++i) {
      const auto sessions = mesh.shard(i).Sessions();
      if (sessions.size() != 1 || sessions[0].phase != shard::SessionPhase::kOrphaned) return false;
    }
    return true;
  };
  ASSERT_TRUE(Eventually(orphans));
  mesh.shard_clock().Advance(absl::Seconds(20));
  EXPECT_TRUE(orphans());
  mesh.shard_clock().Advance(absl::Seconds(11));
  EXPECT_TRUE(mesh.NothingHeld());
  mesh.CancelNewest();
  EXPECT_TRUE(absl::IsCancelled(answer.get().status));
}

TEST(MeshSessions, AReplicaTakesOverFromAShardThatDiesInDecode) {
  Mesh mesh({{.layers = {0, 3}}, {.layers = {3, 6}}, {.layers = {3, 6}}});
  mesh.AddRouter();
  std::atomic<int> frames = 0;
  std::atomic<int> victim = 0;
  for (int i : {1, 2}) {
    mesh.shard(i).hooks.on_frame = [&, i](v1::ForwardRequest& frame) {
      if (frame.has_compute() && frames++ == 4) {
        mesh.shard(i).gate.Close();
        victim = i;
      }
      return Passage::kPass;
    };
  }
  const Request request{.max_tokens = 20};
  std::future<Answer> answer = mesh.Start(request);
  ASSERT_TRUE(Eventually([&] { return victim != 0 && mesh.shard(victim).gate.waiting() > 0; }));
  mesh.shard(victim).Kill();
  const Answer result = answer.get();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.ids, Undisturbed(request));
  EXPECT_EQ(mesh.RouterCounter("reprefills_total"), 1);
  EXPECT_TRUE(mesh.NothingHeld());
}

// What the shard in the middle did is replayed by one that takes more than its layers.
TEST(MeshSessions, AShardThatComesBackWithMoreLayersTakesOverWithTheSameIds) {
  Mesh mesh({{.layers = {0, 2}}, {.layers = {2, 4}}, {.layers = {4, 6}}});
  mesh.AddRouter();
  std::atomic<int> frames = 0;
  mesh.shard(1).hooks.on_frame = [&](v1::ForwardRequest& frame) {
    if (frame.has_compute() && frames++ == 5) mesh.shard(1).gate.Close();
    return Passage::kPass;
  };
  const Request request{.max_tokens = 20};
  std::future<Answer> answer = mesh.Start(request);
  ASSERT_TRUE(Eventually([&] { return mesh.shard(1).gate.waiting() > 0; }));
  mesh.shard(1).Kill();
  mesh.shard(1).gate.Open();
  mesh.shard(1).setup().layers = {2, 6};
  mesh.shard(1).Start(/*fresh_instance=*/true);
  const Answer result = answer.get();
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.ids, Undisturbed(request));
  EXPECT_EQ(mesh.RouterCounter("reprefills_total"), 1);
  // What the third shard has is no longer needed, nor can it be used.
  const double tail_before = mesh.shard(2).Counter("tokens_total");
  EXPECT_EQ(mesh.Generate(request).ids, Undisturbed(request));
  EXPECT_EQ(mesh.shard(2).Counter("tokens_total"), tail_before);
}

TEST(MeshSessions, WithoutAnyShardForSomeLayersTheClientLearnsWhich) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  mesh.shard(1).Kill();
  const Answer answer = mesh.Generate({.timeout = absl::Seconds(3)});
  EXPECT_TRUE(absl::IsUnavailable(answer.status)) << answer.status;
  EXPECT_NE(std::string(answer.status.message()).find("3"), std::string::npos) << answer.status;
}

TEST(MeshSessions, APromptBeyondTheContextIsRefusedWithBothNumbersBeforeAnyWork) {
  Mesh mesh({{.layers = {0, 3}, .context_length = 50}, {.layers = {3, 6}, .context_length = 50}});
  mesh.AddRouter();
  const Answer answer = mesh.Generate({.prompt = std::string(60, 'x'), .max_tokens = 5});
  EXPECT_TRUE(absl::IsInvalidArgument(answer.status)) << answer.status;
  const std::string message(answer.status.message());
  EXPECT_NE(message.find("60"), std::string::npos) << message;
  EXPECT_NE(message.find("50"), std::string::npos) << message;
  EXPECT_EQ(mesh.shard(0).Counter("streams_total"), 0);
  EXPECT_TRUE(mesh.Generate({.prompt = std::string(45, 'x'), .max_tokens = 5}).status.ok());
}

TEST(MeshSessions, AFullQueueRefusesWithARetryDelay) {
  Mesh mesh(TwoShards());
  mesh.AddRouter({.registry = {.generations_max = 1, .queue_max = 1}});
  mesh.shard(0).gate.Close();
  std::future<Answer> running = mesh.Start({});
  ASSERT_TRUE(Eventually([&] { return mesh.shard(0).gate.waiting() > 0; }));
  std::future<Answer> queued = mesh.Start({});
  ASSERT_TRUE(Eventually([&] { return mesh.RouterCounter("queue_depth") == 1; }));
  const Answer refused = mesh.Generate({});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status)) << refused.status;
  EXPECT_TRUE(RetryDelayOf(refused.status).has_value());
  mesh.shard(0).gate.Open();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(queued.get().status.ok());
}

TEST(MixedFleet, ATailWithoutTokenIdsAnswersTheSameAtTheOldCost) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  mesh.shard(1).hooks = WithoutTokenIds();
  std::atomic<int> prefills = 0;
  mesh.shard(0).hooks.on_frame = [&](v1::ForwardRequest& frame) {
    if (frame.compute().cache_mode() == v1::CACHE_MODE_PREFILL) ++prefills;
    return Passage::kPass;
  };
  const Request request{.max_tokens = 6};
  const Answer answer = mesh.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text, ToyText(Undisturbed(request)));
  EXPECT_EQ(prefills, 6);
  EXPECT_TRUE(mesh.NothingHeld());
}

TEST(MixedFleet, AShardWithoutACacheMakesTheWholeRouteStateless) {
  Mesh mesh(TwoShards());
  mesh.shard(1).hooks = WithoutKvCache();
  mesh.AddRouter();
  const Request request{.max_tokens = 6};
  const Answer answer = mesh.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids, Undisturbed(request));
  // Every step runs the whole sequence on every shard.
  const auto prompt = static_cast<double>(request.prompt.size());
  EXPECT_EQ(mesh.shard(0).Counter("tokens_total"), 6 * prompt + 15);
  EXPECT_EQ(mesh.shard(1).Counter("tokens_total"), 6 * prompt + 15);
  EXPECT_TRUE(mesh.shard(0).Sessions().empty());
}

TEST(MixedFleet, AClientMayAskForAStatelessRun) {
  Mesh mesh(TwoShards());
  mesh.AddRouter();
  const Request request{.max_tokens = 6, .cache = v1::CACHE_USE_STATELESS};
  EXPECT_EQ(mesh.Generate(request).ids, Undisturbed(request));
  EXPECT_TRUE(mesh.shard(0).Sessions().empty());
}

}  // namespace
}  // namespace kvmesh::testing

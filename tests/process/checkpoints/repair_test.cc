// A shard that is restarted in the middle of a generation costs one restore on its hop and no
// prefill, wherever the step stood; both at once likewise.
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"

namespace kvmesh::process_testing {
namespace {

// One mesh for all; only fragments are saved.
class Repair : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    MeshPlan plan;
    plan.orphan_ttl_seconds = 600;  // however long a shard takes to come back
    for (const char* reason : {"cold", "continued", "finish"}) {
      plan.meta_flags.insert(plan.meta_flags.end(),
                             {"--tier-policy", absl::StrCat(reason, "=ram")});
    }
    mesh_ = new CheckpointMesh(plan);
  }
  static void TearDownTestSuite() {
    mesh_->ExpectNothingLeft();
    delete mesh_;
    mesh_ = nullptr;
  }
  // The answer is these two tokens, in turns.
  static v1::GenerateRequest AskForTurns(const std::string& topic, uint32_t one, uint32_t other) {
    v1::GenerateRequest request = Verbose(AskFor(PromptText(topic)));
    v1::SamplingParams& sampling = *request.mutable_options()->mutable_sampling();
    sampling.set_frequency_penalty(2);
    for (const uint32_t id : {one, other}) {
      v1::LogitBias& bias = *sampling.add_logit_bias();
      bias.set_token_id(id);
      bias.set_bias(100);
    }
    return request;
  }
  // Letters and first bytes of emoji, so that every other step or so stands inside a character.
  static v1::GenerateRequest AskForBrokenEmoji(const std::string& topic) {
    const std::vector<uint32_t> bytes = mesh_->Tokenize("\xf0\x9f\x98\x80");
    EXPECT_GE(bytes.size(), 4U);
    return AskForTurns(topic, bytes[bytes.size() - 4], mesh_->Tokenize("a").back());
  }
  // Restarts a shard, or both, when the client has seen `at` tokens; nothing else is disturbed.
  static Answer Disturb(const v1::GenerateRequest& request, size_t at,
                        const std::function<void()>& restart) {
    auto stub = PlainStub(mesh_->router());
    return Generate(*stub, request, [&](size_t tokens) {
      if (tokens == at) restart();
    });
  }
  static void ExpectRepaired(const Answer& answer, const std::vector<uint32_t>& right) {
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.ids, right);
    EXPECT_EQ(answer.finished.usage().reprefills(), 0U);
    EXPECT_GE(answer.finished.usage().repairs(), 1U);
  }
  static void Restart(size_t shard) {
    mesh_->shard(shard).Terminate();
    mesh_->shard(shard).Start();
  }
  static CheckpointMesh* mesh_;
};
CheckpointMesh* Repair::mesh_ = nullptr;

TEST_F(Repair, EitherShardRestartedAtAnyStepAlsoInsideACharacterCostsNoPrefill) {
  const v1::GenerateRequest request = AskForBrokenEmoji("emoji");
  const Answer undisturbed = mesh_->Ask(request);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  // A first byte that nothing follows is the replacement character.
  EXPECT_TRUE(absl::StrContains(undisturbed.text, "\xef\xbf\xbd")) << undisturbed.text;
  for (const size_t shard : {0, 1}) {
    for (const size_t at : {1, 2, 3, 4}) {
      SCOPED_TRACE(absl::StrCat("shard ", shard, " at ", at));
      ExpectRepaired(Disturb(request, at, [shard] { Restart(shard); }), undisturbed.ids);
    }
  }
}

TEST_F(Repair, ACharacterThatIsCompletedAfterTheRestartIsWhole) {
  const std::string character = "\xc9\x99";
  const std::vector<uint32_t> bytes = mesh_->Tokenize(character);
  ASSERT_GE(bytes.size(), 2U);
  const v1::GenerateRequest request =
      AskForTurns("whole", bytes[bytes.size() - 2], bytes[bytes.size() - 1]);
  const Answer undisturbed = mesh_->Ask(request);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status;
  EXPECT_TRUE(absl::StrContains(undisturbed.text, character + character)) << undisturbed.text;
  for (const size_t shard : {0, 1}) {
    for (const size_t at : {1, 2}) {
      SCOPED_TRACE(absl::StrCat("shard ", shard, " at ", at));
      const Answer answer = Disturb(request, at, [shard] { Restart(shard); });
      ExpectRepaired(answer, undisturbed.ids);
      EXPECT_EQ(answer.text, undisturbed.text);
    }
  }
}

// The other shard is frozen meanwhile, so that a step is under way: run by the first shard and not
// by the tail, or not run by either.
TEST_F(Repair, AStepThatIsUnderWayIsNeitherLostNorRunTwice) {
  const v1::GenerateRequest request = Verbose(AskFor(PromptText("under way")));
  const Answer undisturbed = mesh_->Ask(request);
  for (const size_t frozen : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("frozen: ", frozen));
    ServerProcess& other = mesh_->shard(1 - frozen);
    const Answer answer = Disturb(request, 5, [&] {
      mesh_->shard(frozen).Freeze();
      other.Signal(SIGTERM);
      mesh_->shard(frozen).Thaw();
      other.AwaitEnd();
      other.Start();
    });
    ExpectRepaired(answer, undisturbed.ids);
  }
}

TEST_F(Repair, BothShardsAtOnceAreRepairedToo) {
  const v1::GenerateRequest request = AskForBrokenEmoji("both");
  const Answer undisturbed = mesh_->Ask(request);
  for (const size_t at : {1, 2, 3}) {
    SCOPED_TRACE(at);
    const Answer answer = Disturb(request, at, [] {
      for (const size_t shard : {0, 1}) mesh_->shard(shard).Signal(SIGTERM);
      for (const size_t shard : {0, 1}) mesh_->shard(shard).AwaitEnd();
      for (const size_t shard : {0, 1}) mesh_->shard(shard).Start();
    });
    ExpectRepaired(answer, undisturbed.ids);
  }
}

// Sampling with a seed and penalties goes on from the same state too.
TEST_F(Repair, ASampledAnswerWithPenaltiesStaysTheSame) {
  v1::GenerateRequest request = Verbose(AskFor(PromptText("sampled")));
  v1::SamplingParams& sampling = *request.mutable_options()->mutable_sampling();
  sampling.set_temperature(0.9F);
  sampling.set_repetition_penalty(1.2F);
  sampling.set_presence_penalty(0.4F);
  sampling.set_seed(7);
  const Answer undisturbed = mesh_->Ask(request);
  for (const size_t shard : {0, 1}) {
    ExpectRepaired(Disturb(request, 6, [shard] { Restart(shard); }), undisturbed.ids);
  }
}

}  // namespace
}  // namespace kvmesh::process_testing

// What was saved is found again and gives the same ids: from every tier, for every reason to save,
// after everything was started again, and by other splits of the layers.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/slab/reader.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

// As a run without any cache, and from `tier`: all of its prompt, or a part.
enum class Reused { kWhole, kPart };
void ExpectReuse(const CheckpointMesh& mesh, const v1::GenerateRequest& request, Reused reused,
                 const std::string& tier) {
  const Answer warm = mesh.Ask(request);
  ASSERT_TRUE(warm.status.ok()) << warm.status;
  EXPECT_EQ(warm.ids, mesh.Ask(Stateless(request)).ids);
  const v1::Usage& usage = warm.finished.usage();
  EXPECT_EQ(IsWhole(usage), reused == Reused::kWhole) << usage.ShortDebugString();
  EXPECT_GT(usage.cached_tokens(), 0U);
  EXPECT_EQ(usage.cached_by_tier().size(), 1U) << usage.ShortDebugString();
  EXPECT_EQ(usage.cached_by_tier().count(tier), 1U) << usage.ShortDebugString();
}

// A mesh that has one tier and saves everything there.
MeshPlan OnTier(const std::string& tier) {
  MeshPlan plan{.stores = {{.tier = tier}}};
  for (const char* reason : {"cold=", "finish="}) {
    plan.meta_flags.insert(plan.meta_flags.end(), {"--tier-policy", reason + tier});
  }
  return plan;
}

class EachTier : public ::testing::TestWithParam<std::string> {};

TEST_P(EachTier, AloneServesTheSamePromptAndTheNextTurn) {
  CheckpointMesh mesh(OnTier(GetParam()));
  const v1::GenerateRequest request = WithIds(AskFor(PromptText("tiers")));
  const Answer cold = mesh.Ask(request);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  EXPECT_EQ(cold.finished.usage().outcome(), "COLD");
  EXPECT_EQ(cold.finished.usage().cause(), "no_row");
  mesh.AwaitSaved();
  ExpectReuse(mesh, request, Reused::kWhole, GetParam());
  ExpectReuse(mesh, NextTurn(cold), Reused::kPart, GetParam());
  mesh.ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Tiers, EachTier, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

TEST(AllTiers, EachReasonGoesToItsOwnAndIsFoundThere) {
  CheckpointMesh mesh(
      {.stores = {{.tier = "ram"}, {.tier = "ram_file"}, {.tier = "disk"}},
       .meta_flags = {"--tier-policy", "cold=ram_file", "--tier-policy", "finish=disk"}});
  const v1::GenerateRequest request = WithIds(AskFor(PromptText("all tiers")));
  const Answer cold = mesh.Ask(request);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  mesh.AwaitSaved();
  ExpectReuse(mesh, request, Reused::kWhole, "ram_file");
  ExpectReuse(mesh, NextTurn(cold), Reused::kPart, "disk");
  v1::GenerateRequest in_memory = AskFor(PromptText("one request's own tier"));
  in_memory.mutable_options()->set_save_tier("ram");
  ASSERT_TRUE(mesh.Ask(in_memory).status.ok());
  mesh.AwaitSaved();
  ExpectReuse(mesh, in_memory, Reused::kWhole, "ram");
  mesh.ExpectNothingLeft();
}

// ---- Each reason alone: the others have no store ----

MeshPlan Only(const std::string& reason) {
  MeshPlan plan;
  for (const std::string other : {"cold", "continued", "finish", "evict", "shutdown"}) {
    const std::string tier = other == reason ? "disk" : "ram";
    plan.meta_flags.insert(plan.meta_flags.end(),
                           {"--tier-policy", absl::StrCat(other, "=", tier)});
  }
  return plan;
}

double SavesStarted(CheckpointMesh& mesh, const std::string& reason) {
  return mesh.router().Metric(
      absl::StrCat("kvmesh_router_saves_total{reason=\"", reason, "\",result=\"started\"}"));
}

double SavesDone(CheckpointMesh& mesh, size_t shard, const std::string& reason) {
  return mesh.shard(shard).Metric(
      absl::StrCat("kvmesh_shard_saves_total{reason=\"", reason, "\",result=\"done\"}"));
}

TEST(SaveReason, ColdIsTheSamePromptAgain) {
  CheckpointMesh mesh(Only("cold"));
  const v1::GenerateRequest request = AskFor(PromptText("cold"));
  ASSERT_TRUE(mesh.Ask(request).status.ok());
  mesh.AwaitSaved();
  EXPECT_EQ(SavesStarted(mesh, "cold"), 1);
  EXPECT_EQ(mesh.Rows().size(), 1U);
  ExpectReuse(mesh, request, Reused::kWhole, "disk");
  mesh.ExpectNothingLeft();
}

// The arbiter is silent until the client has read tokens: the row's state is cut from a longer one
// then, and is a full hit all the same.
TEST(SaveReason, ColdIsAFullHitHoweverLongAfterThePrefillItsReservationComes) {
  CheckpointMesh mesh(Only("cold"));
  auto stub = PlainStub(mesh.router());
  v1::GenerateRequest request = Verbose(AskFor(PromptText("prefilled long before")));
  mesh.Connect();
  mesh.meta().Freeze();
  const Answer cold = Generate(*stub, request, [&mesh](size_t tokens) {
    if (tokens == 3) mesh.meta().Thaw();
  });
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  EXPECT_EQ(cold.finished.usage().cause(), "disabled: meta unavailable");
  mesh.AwaitSaved();
  EXPECT_EQ(SavesStarted(mesh, "cold"), 2);
  request = AskFor(request.text());
  ExpectReuse(mesh, request, Reused::kWhole, "disk");
  EXPECT_EQ(mesh.Ask(request).finished.usage().outcome(), "EXACT");
  mesh.ExpectNothingLeft();
}

// What slabs hold besides who wrote them when: by layers, the state and the output row.
std::vector<std::pair<uint32_t, std::string>> StateIn(const std::vector<std::string>& files) {
  std::vector<std::pair<uint32_t, std::string>> state;
  for (const std::string& file : files) {
    const std::string bytes = testing::ReadWholeFile(file);
    const auto envelope = slab::ReadEnvelope(slab::MemorySource(bytes));
    EXPECT_TRUE(envelope.ok()) << envelope.status();
    if (!envelope.ok()) continue;
    const slab::SlabMeta& meta = envelope->meta;
    EXPECT_TRUE(meta.last_output.has_value());
    state.emplace_back(meta.header.layers.begin,
                       absl::StrCat(bytes.substr(meta.payload_offset(), meta.header.payload_bytes),
                                    meta.last_output.has_value() ? meta.last_output->bytes : ""));
  }
  std::sort(state.begin(), state.end());
  return state;
}

// The store takes nothing from before the prefill until the client has a hundred tokens, so that
// the answer is computed beside an upload that is under way.
TEST(SaveReason, ColdIsTheStateAtThePromptsEndWhateverIsComputedBesideItsUpload) {
  CheckpointMesh still(Only("cold"));
  const std::string prompt = PromptText("in mid-upload");
  ASSERT_TRUE(still.Ask(AskFor(prompt, 1)).status.ok());
  still.AwaitSaved();
  const auto clone = StateIn(still.SlabFiles());
  ASSERT_EQ(clone.size(), 2U);

  MeshPlan plan = Only("cold");
  plan.shard_flags = {"--save-timeout", "600"};
  CheckpointMesh mesh(plan);
  mesh.Connect();
  mesh.store().Freeze();
  auto stub = PlainStub(mesh.router());
  const Answer answer = Generate(*stub, Verbose(AskFor(prompt)), [&mesh](size_t tokens) {
    if (tokens == 1) {
      EXPECT_TRUE(WaitUntil([&mesh] {
        return mesh.shard(0).Metric("kvmesh_shard_saves_in_flight") == 1 &&
               mesh.shard(1).Metric("kvmesh_shard_saves_in_flight") == 1;
      }));
    }
    if (tokens == 100) mesh.store().Thaw();
  });
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  mesh.AwaitSaved();
  EXPECT_TRUE(StateIn(mesh.SlabFiles()) == clone);
  ExpectReuse(mesh, AskFor(prompt), Reused::kWhole, "disk");
  EXPECT_EQ(mesh.Ask(AskFor(prompt)).finished.usage().outcome(), "EXACT");
  mesh.ExpectNothingLeft();
}

TEST(SaveReason, ContinuedIsTheAnswerSoFar) {
  MeshPlan plan = Only("continued");
  plan.router_flags = {"--continued-interval", "16"};
  CheckpointMesh mesh(plan);
  const Answer cold = mesh.Ask(WithIds(AskFor(PromptText("continued"), 40)));
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  mesh.AwaitSaved();
  EXPECT_GE(SavesStarted(mesh, "continued"), 1);
  ExpectReuse(mesh, NextTurn(cold), Reused::kPart, "disk");
  mesh.ExpectNothingLeft();
}

TEST(SaveReason, FinishIsTheNextTurn) {
  CheckpointMesh mesh(Only("finish"));
  const Answer cold = mesh.Ask(WithIds(AskFor(PromptText("finish"))));
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  mesh.AwaitSaved();
  EXPECT_EQ(SavesStarted(mesh, "finish"), 1);
  ExpectReuse(mesh, NextTurn(cold), Reused::kPart, "disk");
  mesh.ExpectNothingLeft();
}

// The arbiter is silent from the answer's first tokens until the client has all of it: what is
// saved then is reserved after the client's last message.
TEST(SaveReason, FinishIsSavedHoweverLongAfterTheAnswerItsReservationComes) {
  CheckpointMesh mesh(Only("finish"));
  auto stub = PlainStub(mesh.router());
  const auto request = WithIds(Verbose(AskFor(PromptText("answered long before"))));
  const Answer first = Generate(*stub, request, [&mesh](size_t tokens) {
    if (tokens == 1) mesh.meta().Freeze();
  });
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_FALSE(mesh.IsIdle());
  mesh.meta().Thaw();
  mesh.AwaitSaved();
  EXPECT_TRUE(mesh.IsIdle());
  EXPECT_EQ(SavesStarted(mesh, "finish"), 1);
  ExpectReuse(mesh, NextTurn(first), Reused::kPart, "disk");
  mesh.ExpectNothingLeft();
}

// ---- What shards save alone ----

// Every token of the answer is the letter "a", so that no answer ends inside a character.
v1::GenerateRequest AskForLetters(const CheckpointMesh& mesh, const std::string& prompt) {
  v1::GenerateRequest letters = Verbose(AskFor(prompt));
  auto& bias = *letters.mutable_options()->mutable_sampling()->add_logit_bias();
  bias.set_token_id(mesh.Tokenize("a").back());
  bias.set_bias(100);
  return letters;
}

// Leaves one session at every shard, all at one position, by a router that is killed while a
// generation runs; how many tokens they hold.
uint64_t LeaveASession(CheckpointMesh& mesh, const v1::GenerateRequest& request) {
  auto stub = PlainStub(mesh.router());
  const Answer cut = Generate(*stub, request, [&mesh](size_t tokens) {
    if (tokens != 8) return;
    mesh.router().Freeze();
    // What the router had sent may still be on its way: looked at until nothing moves any more.
    uint64_t before = 0;
    int still = 0;
    EXPECT_TRUE(WaitUntil([&] {
      const uint64_t held = mesh.HeldAt(0);
      still = held > 0 && held == before && held == mesh.HeldAt(1) ? still + 1 : 0;
      before = held;
      return still >= 5;
    }));
    mesh.router().Kill();
  });
  EXPECT_FALSE(cut.status.ok());
  return mesh.HeldAt(0);
}

// The prompt and `held` tokens of the answer to it, and three more.
v1::GenerateRequest GoOnFrom(const CheckpointMesh& mesh, const v1::GenerateRequest& letters,
                             uint64_t held) {
  v1::GenerateRequest request = letters;
  std::vector<uint32_t> ids = mesh.Tokenize(letters.text());
  ids.resize(held + 3, letters.options().sampling().logit_bias(0).token_id());
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_options()->set_max_tokens(8);
  request.mutable_options()->mutable_sampling()->set_logprobs(false);
  request.mutable_options()->mutable_sampling()->set_top_logprobs(0);
  return request;
}

TEST(SaveReason, EvictIsASessionThatANewcomerPushedOut) {
  MeshPlan plan = Only("evict");
  plan.orphan_ttl_seconds = 3600;
  plan.shard_flags = {"--kv-max-sessions", "1", "--evict-save-timeout", "30"};
  CheckpointMesh mesh(plan);
  const v1::GenerateRequest request = AskForLetters(mesh, PromptText("evict"));
  const uint64_t held = LeaveASession(mesh, request);
  mesh.router().Start();
  mesh.AwaitReady();
  ASSERT_TRUE(mesh.Ask(AskFor(PromptText("newcomer"))).status.ok());
  EXPECT_TRUE(WaitUntil([&] { return mesh.Rows().size() == 1; })) << mesh.shard(0).Log();
  for (const size_t shard : {0, 1}) {
    EXPECT_TRUE(WaitUntil([&] { return SavesDone(mesh, shard, "evict") == 1; }));
  }
  ExpectReuse(mesh, GoOnFrom(mesh, request, held), Reused::kPart, "disk");
  mesh.ExpectNothingLeft();
}

TEST(SaveReason, ShutdownIsWhatShardsHeldWhenTheyLeft) {
  CheckpointMesh mesh(Only("shutdown"));
  const v1::GenerateRequest request = AskForLetters(mesh, PromptText("shutdown"));
  const uint64_t held = LeaveASession(mesh, request);
  for (const size_t shard : {1, 0}) mesh.shard(shard).Signal(SIGTERM);
  for (const size_t shard : {0, 1}) mesh.shard(shard).AwaitEnd();
  EXPECT_TRUE(WaitUntil([&] { return mesh.Rows().size() == 1; }));
  for (const size_t shard : {0, 1}) mesh.shard(shard).Start();
  mesh.router().Start();
  mesh.AwaitReady();
  ExpectReuse(mesh, GoOnFrom(mesh, request, held), Reused::kPart, "disk");
  mesh.ExpectNothingLeft();
}

// ---- What outlives whom ----

TEST(Survives, ATierOutlivesEveryProcessWhenItKeepsFiles) {
  for (const std::string tier : {"disk", "ram_file", "ram"}) {
    SCOPED_TRACE(tier);
    CheckpointMesh mesh(OnTier(tier));
    const v1::GenerateRequest request = AskFor(PromptText("restart"));
    const Answer cold = mesh.Ask(request);
    ASSERT_TRUE(cold.status.ok()) << cold.status;
    mesh.AwaitSaved();
    const std::vector<ServerProcess*> all = mesh.All();
    for (auto server = all.rbegin(); server != all.rend(); ++server) (*server)->Terminate();
    for (ServerProcess* server : all) server->Start();
    mesh.AwaitReady();
    const Answer after = mesh.Ask(request);
    EXPECT_EQ(after.ids, cold.ids);
    EXPECT_EQ(IsWhole(after.finished.usage()), tier != "ram")
        << after.finished.usage().ShortDebugString();
    mesh.ExpectNothingLeft();
  }
}

TEST(Survives, RowsOfOneSplitServeAnotherAndBack) {
  CheckpointMesh mesh;
  const v1::GenerateRequest request = WithIds(AskFor(PromptText("two")));
  const Answer cold = mesh.Ask(request);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  mesh.AwaitSaved();
  mesh.Split({"0:1", "1:3", "3:4"});
  ExpectReuse(mesh, request, Reused::kWhole, "disk");
  ExpectReuse(mesh, NextTurn(cold), Reused::kPart, "disk");
  const v1::GenerateRequest other = AskFor(PromptText("three"));
  ASSERT_TRUE(mesh.Ask(other).status.ok());
  mesh.AwaitSaved();
  mesh.Split({"0:2", "2:4"});
  ExpectReuse(mesh, other, Reused::kWhole, "disk");
  mesh.Split({"0:4"});
  ExpectReuse(mesh, other, Reused::kWhole, "disk");
  ExpectReuse(mesh, request, Reused::kWhole, "disk");
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing

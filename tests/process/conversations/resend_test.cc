// The same prompt again: nothing is computed for it, the reply is the same, and every answer says
// what was reused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "tests/process/conversations/conversation.h"

namespace kvmesh::process_testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kTokens = 8;

TEST(Resend, AFullHitRunsNoLayerAndGivesTheReplyAgain) {
  StoringMesh mesh(RealModel());
  const std::vector<uint32_t> ids = PromptIds(mesh, "a prompt sent twice", 600);
  v1::GenerateRequest request = AskForIds(ids, kTokens);
  request.mutable_options()->mutable_sampling()->set_logprobs(true);
  request.mutable_options()->mutable_sampling()->set_top_logprobs(20);
  const Answer cold = mesh.Ask(request);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  mesh.AwaitSaved();
  const double before = RowsRun(mesh);
  const Answer again = mesh.Ask(request);
  // Only decode steps: the first token came from the stored row.
  EXPECT_EQ(RowsRun(mesh) - before, kTokens - 1);
  EXPECT_EQ(mesh.Metric("shard-1", "kvmesh_shard_full_hits_total"), 1);
  ExpectEqual(again, cold);
  EXPECT_EQ(again.finished.usage().outcome(), "EXACT");
  EXPECT_EQ(again.finished.usage().cached_tokens(), ids.size());
  EXPECT_EQ(again.finished.finish_key(), cold.finished.finish_key());
  // Other draws from the same row.
  request.mutable_options()->mutable_sampling()->set_temperature(1.5F);
  request.mutable_options()->mutable_sampling()->set_seed(7);
  const Answer drawn = mesh.Ask(request);
  EXPECT_EQ(drawn.finished.usage().outcome(), "EXACT");
  ExpectEqual(drawn, mesh.Ask(Uncached(request, drawn, v1::CACHE_USE_OFF, kTokens)));
}

TEST(Resend, AShorterPromptThatACutPointCoversRunsItsLastTokenAlone) {
  StoringMesh mesh(RealModel());
  std::vector<uint32_t> ids = PromptIds(mesh, "a prompt cut short", 800);
  ASSERT_TRUE(mesh.Ask(AskForIds(ids, 1)).status.ok());
  mesh.AwaitSaved();
  ids.resize(768);
  const double before = RowsRun(mesh);
  const Answer answer = mesh.Ask(AskForIds(ids, kTokens));
  EXPECT_EQ(RowsRun(mesh) - before, kTokens);
  EXPECT_EQ(answer.finished.usage().outcome(), "PARTIAL");
  EXPECT_EQ(answer.finished.usage().cached_tokens(), ids.size() - 1);
  ExpectEqual(answer,
              mesh.Ask(Uncached(AskForIds(ids, kTokens), answer, v1::CACHE_USE_OFF, kTokens)));
}

// Saves whose usual tiers are missing go to the one that is there.
TEST(Tiers, OneAloneTakesTheSavesOfEveryReason) {
  for (const std::string tier : {"ram", "disk"}) {
    SCOPED_TRACE(tier);
    StoringMesh mesh(TinyModel(), {"--min-tokens=16"},
                     {"--cold-min-tokens=16", "--restore-min-tokens=8", "--continued-interval=8"},
                     tier);
    const v1::GenerateRequest request = AskForIds(PromptIds(mesh, "one tier", 90), 20);
    ASSERT_TRUE(mesh.Ask(request).status.ok());
    mesh.AwaitSaved();
    for (const char* reason : {"cold", "continued", "finish"}) {
      EXPECT_GE(mesh.Metric("router", absl::StrCat("kvmesh_router_saves_total{reason=\"", reason,
                                                   "\",result=\"started\"}")),
                1)
          << reason;
    }
    const v1::Usage usage = mesh.Ask(request).finished.usage();
    EXPECT_EQ(usage.outcome(), "EXACT");
    EXPECT_EQ(usage.cached_by_tier().at(tier), 90U);
    mesh.ExpectNothingLeft();
  }
}

std::vector<std::string> GenerateCommand(StoringMesh& mesh, const std::string& prompt) {
  return {"generate",     "--router", mesh.router_address(), "--prompt", prompt,
          "--max-tokens", "4",        "--ignore-eos"};
}

TEST(Explained, TheCommandLineSaysWhatWasReused) {
  StoringMesh mesh(TinyModel(), {"--min-tokens=16"},
                   {"--cold-min-tokens=16", "--restore-min-tokens=8"});
  const std::string prompt = PromptText("the command line", 200);
  std::vector<std::string> command = GenerateCommand(mesh, prompt);
  EXPECT_THAT(RunCli(command).err, HasSubstr("COLD: no_row"));
  mesh.AwaitSaved();
  EXPECT_THAT(RunCli(command).err, HasSubstr("EXACT"));
  command.emplace_back("--json");
  const Outcome outcome = RunCli(command);
  ASSERT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  const cli::Json answer = outcome.Json();
  const cli::Json& usage = answer["usage"];
  // The router has the model's own first token before a text.
  const auto tokens = mesh.Tokenize(prompt).size() + 1;
  EXPECT_EQ(usage["outcome"], "EXACT");
  EXPECT_EQ(usage["cause"], "");
  EXPECT_EQ(usage["prompt_tokens"], tokens);
  EXPECT_EQ(usage["cached_tokens"], tokens);
  EXPECT_EQ(usage["cached_by_tier"]["disk"], tokens);
  EXPECT_EQ(usage["drifted_tokens"], 0);
  EXPECT_EQ(answer["finish_key"].get<std::string>().size(), 64U);

  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = command;
    all.insert(all.end(), more.begin(), more.end());
    return RunCli(all).Json()["usage"];
  };
  EXPECT_EQ(with({"--cache", "off"})["cause"], "disabled: cache off");
  EXPECT_EQ(with({"--cache", "stateless"})["cause"], "disabled: stateless");
  EXPECT_EQ(with({"--parent-key", answer["finish_key"].get<std::string>()})["outcome"], "EXACT");
}

}  // namespace
}  // namespace kvmesh::process_testing

// One text in two spellings of tokens: stored by two writers in alternate layer ranges they never
// become one row; and what a user types is never taken for the control token that it spells.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "tests/process/answers.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

// A slab file: where it lay, and what it held.
using File = std::pair<std::string, std::string>;

double ColdSaves(CheckpointMesh& mesh, const std::string& result) {
  return mesh.router().Metric(
      absl::StrCat("kvmesh_router_saves_total{reason=\"cold\",result=\"", result, "\"}"));
}

std::string BytesOf(CheckpointMesh& mesh, const std::vector<uint32_t>& ids) {
  auto stub = v1::RouterService::NewStub(rpc::MakeChannel(mesh.router().address()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::DetokenizeRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  v1::DetokenizeResponse response;
  const grpc::Status status = stub->Detokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.text_bytes();
}

// A token for each byte: the vocabulary has them in order.
std::vector<uint32_t> Spell(CheckpointMesh& mesh, const std::string& text) {
  constexpr uint32_t kTokenOfByteZero = 3;
  std::vector<uint32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(kTokenOfByteZero + static_cast<unsigned char>(c));
  EXPECT_EQ(BytesOf(mesh, ids), text);
  return ids;
}

// As without any cache; what was restored for it.
v1::Usage ExpectRight(const CheckpointMesh& mesh, const v1::GenerateRequest& request) {
  const Answer answer = mesh.Ask(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  ExpectEqual(answer, mesh.Ask(Uncached(request, answer, v1::CACHE_USE_STATELESS, 1)));
  return answer.finished.usage();
}

class TwoSpellings : public ::testing::Test {
 protected:
  // What a row of these ids lies in, by layers; nothing is stored any more.
  std::vector<File> SaveAndTake(const std::vector<uint32_t>& ids) {
    EXPECT_TRUE(mesh_.Ask(AskForIds(ids, 1)).status.ok());
    mesh_.AwaitSaved();
    std::vector<File> files;
    for (const std::string& path : mesh_.SlabFiles()) {
      files.emplace_back(path, testing::ReadWholeFile(path));
    }
    EXPECT_EQ(files.size(), 4U);
    Lay({});
    return files;
  }
  // The store has these files alone, and the arbiter what it finds there.
  void Lay(const std::vector<File>& files) {
    mesh_.meta().Terminate();
    mesh_.store().Terminate();
    for (const std::string& path : mesh_.SlabFiles()) std::filesystem::remove(path);
    for (const auto& [path, bytes] : files) {
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      std::ofstream(path, std::ios::binary) << bytes;
    }
    mesh_.meta().Start();
    mesh_.store().Start();
    mesh_.AwaitReady();
  }
  static std::vector<File> Alternate(const std::vector<File>& one, const std::vector<File>& other) {
    return {one[0], other[1], one[2], other[3]};
  }
  static std::string KeyOf(const File& file) {
    return std::filesystem::path(file.first).filename().string().substr(0, 64);
  }

  CheckpointMesh mesh_{{.layers = {"0:1", "1:2", "2:3", "3:4"}}};
};

TEST_F(TwoSpellings, StoredInAlternateLayerRangesAreNoRow) {
  const std::vector<uint32_t> words = mesh_.Tokenize(PromptText("two spellings", 121));
  const std::vector<uint32_t> letters = Spell(mesh_, BytesOf(mesh_, words));
  ASSERT_NE(words, letters);
  const std::vector<File> by_words = SaveAndTake(words);
  const std::vector<File> by_words_again = SaveAndTake(words);
  const std::vector<File> by_letters = SaveAndTake(letters);
  for (size_t i = 0; i < 4; ++i) ASSERT_EQ(KeyOf(by_words[i]), KeyOf(by_letters[i]));

  // Two writers of one spelling are a row.
  Lay(Alternate(by_words, by_words_again));
  EXPECT_TRUE(WaitUntil([this] { return mesh_.Rows().size() == 1; }));
  EXPECT_EQ(ExpectRight(mesh_, AskForIds(words, 1)).outcome(), "EXACT");

  Lay(Alternate(by_words, by_letters));
  EXPECT_TRUE(WaitUntil([this] { return mesh_.MetaStats().fragments() == 4; }));
  EXPECT_TRUE(mesh_.Rows().empty());
  const v1::Usage cold = ExpectRight(mesh_, AskForIds(words, 1));
  EXPECT_EQ(cold.outcome(), "COLD");
  EXPECT_EQ(cold.cause(), "no_row");
  // What that saved is one writer's.
  mesh_.AwaitSaved();
  const std::vector<v1::RowSummary> rows = mesh_.Rows();
  ASSERT_EQ(rows.size(), 1U);
  for (const v1::SlabPlace& slab : rows[0].row().slabs()) {
    EXPECT_EQ(slab.slab().write_id(), rows[0].row().write_id());
  }
  EXPECT_EQ(ExpectRight(mesh_, AskForIds(words, 1)).outcome(), "EXACT");
  mesh_.ExpectNothingLeft();
}

TEST_F(TwoSpellings, HaveOneRowAndTheSecondIsToldSo) {
  const std::vector<uint32_t> words = mesh_.Tokenize(PromptText("one row", 121));
  v1::GenerateRequest letters = AskForIds(Spell(mesh_, BytesOf(mesh_, words)), 1);
  ASSERT_TRUE(mesh_.Ask(AskForIds(words, 1)).status.ok());
  mesh_.AwaitSaved();
  letters.mutable_options()->set_require_exact_tokens(true);
  EXPECT_EQ(ExpectRight(mesh_, letters).cause(), "restore_failed:drift");
  mesh_.AwaitSaved();
  EXPECT_EQ(ColdSaves(mesh_, "already_exists"), 1);
  EXPECT_EQ(mesh_.Rows().size(), 1U);
  letters.mutable_options()->set_require_exact_tokens(false);
  const v1::Usage drifted = ExpectRight(mesh_, letters);
  EXPECT_EQ(drifted.outcome(), "EXACT");
  EXPECT_EQ(drifted.prompt_tokens(), words.size());
  EXPECT_GT(drifted.drifted_tokens(), 0U);
  mesh_.ExpectNothingLeft();
}

TEST(ControlTokens, ShareNoKeyWithTheTextThatSpellsThem) {
  constexpr size_t kAlign = 16;
  CheckpointMesh mesh;
  const std::vector<uint32_t> control = {2};
  const std::string spelled = BytesOf(mesh, control);
  ASSERT_EQ(spelled, "</s>");
  const std::vector<uint32_t> before = mesh.Tokenize(PromptText("before", 100));
  const std::vector<uint32_t> after = mesh.Tokenize(PromptText("behind", 70));
  std::vector<Answer> answers;
  std::vector<v1::GenerateRequest> requests;
  for (const std::vector<uint32_t>& middle : {control, Spell(mesh, spelled)}) {
    std::vector<uint32_t> ids = before;
    ids.insert(ids.end(), middle.begin(), middle.end());
    ids.insert(ids.end(), after.begin(), after.end());
    ASSERT_NE(ids.size() % kAlign, 0U);
    requests.push_back(AskForIds(ids, 1));
    answers.push_back(mesh.Ask(requests.back()));
    ASSERT_TRUE(answers.back().status.ok()) << answers.back().status;
    mesh.AwaitSaved();
  }
  // Nothing beyond what the two have in common.
  EXPECT_EQ(answers[0].finished.usage().cached_tokens(), 0U);
  EXPECT_EQ(answers[1].finished.usage().cached_tokens(), before.size() / kAlign * kAlign);
  EXPECT_NE(answers[0].finished.finish_key(), answers[1].finished.finish_key());
  EXPECT_EQ(mesh.Rows().size(), 2U);
  for (const v1::GenerateRequest& request : requests) {
    const v1::Usage usage = ExpectRight(mesh, request);
    EXPECT_EQ(usage.outcome(), "EXACT");
    EXPECT_EQ(usage.drifted_tokens(), 0U);
  }
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing

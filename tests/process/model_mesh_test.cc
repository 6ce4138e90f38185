// Every reference model in GGUF over meshes of real processes: the engine, the wire and the router
// together give what the reference implementation gives, however the layers are split.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/process/process_testing.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

constexpr size_t kTokens = 16;
// Below it, two tokens are so near to one another that the rounding of keys and values to 16 bits
// may decide between them.
constexpr double kNearTie = 0.05;

struct ReferencePrompt {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> greedy;  // up to the first near tie, and kTokens at most
};

std::vector<ReferencePrompt> PromptsOf(const cli::Json& expected) {
  std::vector<ReferencePrompt> prompts;
  for (const cli::Json& json : expected["prompts"]) {
    ReferencePrompt prompt{.ids = json["ids"].get<std::vector<uint32_t>>()};
    for (size_t i = 0; i < kTokens && json["margins"][i].get<double>() >= kNearTie; ++i) {
      prompt.greedy.push_back(json["greedy_ids"][i].get<uint32_t>());
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<uint32_t> GreedyIds(v1::RouterService::Stub& router, const std::vector<uint32_t>& ids,
                                v1::CacheUse cache) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.mutable_options()->set_max_tokens(kTokens);
  request.mutable_options()->set_ignore_eos(true);
  request.mutable_options()->set_cache(cache);
  const Answer answer = Generate(router, request);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.finished.usage().reprefills(), 0u);
  return answer.ids;
}

// The ids of every prompt over a mesh of so many shards.
std::vector<std::vector<uint32_t>> RunMesh(const std::string& model, uint32_t shards,
                                           const std::vector<ReferencePrompt>& prompts) {
  SCOPED_TRACE(absl::StrCat(shards, " shards"));
  Mesh mesh(model, {"--shards", absl::StrCat(shards), "--threads", "1"});
  std::vector<std::vector<uint32_t>> all;
  if (!mesh.started()) return all;
  all.reserve(prompts.size());
  for (const ReferencePrompt& prompt : prompts) {
    all.push_back(GreedyIds(mesh.router(), prompt.ids, v1::CACHE_USE_ON));
    EXPECT_GE(all.back().size(), prompt.greedy.size());
    EXPECT_TRUE(std::equal(prompt.greedy.begin(), prompt.greedy.end(), all.back().begin()))
        << ::testing::PrintToString(all.back()) << " but the reference has "
        << ::testing::PrintToString(prompt.greedy);
    EXPECT_EQ(GreedyIds(mesh.router(), prompt.ids, v1::CACHE_USE_STATELESS), all.back());
  }
  return all;
}

TEST(ModelMesh, EveryGgufGivesTheReferencesIdsHoweverItsLayersAreSplit) {
  const std::filesystem::path folder = kvmesh::testing::TestDataRoot() / "gguf";
  if (kvmesh::testing::FolderIsAbsent(folder)) return;
  size_t count = 0;
  for (const std::filesystem::path& path : kvmesh::testing::ListFolder(folder)) {
    if (path.extension() != ".gguf") continue;
    std::ifstream in(std::filesystem::path(path).replace_extension(".expected.json"));
    const cli::Json expected = cli::Json::parse(in, nullptr, false);
    if (!expected.is_object() || !expected.contains("prompts")) continue;  // blocks, no model
    SCOPED_TRACE(path.filename().string());
    ++count;
    const Outcome inspected = RunCli({"model", "inspect", path.string(), "--json"});
    if (inspected.exit_code != cli::kDone) {
      // That its architecture is named is what the refusal of a model that is not supported shows.
      EXPECT_NE(inspected.err.find(expected["architecture"].get<std::string>()), std::string::npos)
          << inspected.err;
      continue;
    }
    const std::vector<ReferencePrompt> prompts = PromptsOf(expected);
    const auto layers = inspected.Json()["layer_count"].get<uint32_t>();
    const auto whole = RunMesh(path.string(), 1, prompts);
    EXPECT_EQ(RunMesh(path.string(), layers, prompts), whole);
  }
  std::printf("%zu cases ran\n", count);
  EXPECT_GT(count, 0u);
}

}  // namespace
}  // namespace kvmesh::process_testing

// What lies on the disk is damaged under a running mesh: a miss that says why, the bad slab moved
// aside, the right ids, and the same prompt saved anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/process/checkpoints/checkpoint_mesh.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

void FlipAt(const std::string& path, double where) {
  std::string bytes = testing::ReadWholeFile(path);
  bytes[static_cast<size_t>(where * static_cast<double>(bytes.size() - 1))] ^= 0x10;
  WriteFile(path, bytes);
}

// Of the files of one row: those of shard 0 come first.
using Damage = std::function<void(const std::vector<std::string>&)>;

struct Case {
  std::string name;
  Damage damage;
  std::vector<std::string> causes;  // of the miss: which reader meets it first is its own affair
  bool quarantined = true;
};

// Where a slab's token ids lie, more or less.
constexpr double kInTheIds = 0.02;
constexpr double kInTheState = 0.7;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const size_t hop : {0, 1}) {
    const auto file = [hop](const std::vector<std::string>& files) { return files[hop]; };
    const std::string of = absl::StrCat("OfHop", hop);
    cases.push_back({"AFlippedBitOfState" + of,
                     [file](const auto& files) { FlipAt(file(files), kInTheState); },
                     {"restore_failed:corrupt"}});
    cases.push_back({"AFlippedBitOfTheIds" + of,
                     [file](const auto& files) { FlipAt(file(files), kInTheIds); },
                     {"restore_failed:corrupt", "restore_failed:bad_slab"}});
    cases.push_back({"AFileThatWasCut" + of,
                     [file](const auto& files) {
                       std::filesystem::resize_file(file(files),
                                                    std::filesystem::file_size(file(files)) / 2);
                     },
                     {"restore_failed:corrupt", "restore_failed:bad_slab"}});
    cases.push_back({"AnEmptyFile" + of,
                     [file](const auto& files) { std::filesystem::resize_file(file(files), 0); },
                     {"restore_failed:corrupt", "restore_failed:bad_slab"}});
    cases.push_back({"AFileThatIsGone" + of,
                     [file](const auto& files) { std::filesystem::remove(file(files)); },
                     {"restore_failed:not_found", "restore_failed:slab_gone"},
                     /*quarantined=*/false});
  }
  cases.push_back({"TheSlabsOfTwoHopsSwapped",
                   [](const auto& files) {
                     const std::string first = testing::ReadWholeFile(files[0]);
                     WriteFile(files[0], testing::ReadWholeFile(files[1]));
                     WriteFile(files[1], first);
                   },
                   {"restore_failed:bad_slab", "restore_failed:corrupt"}});
  return cases;
}

class Damaged : public ::testing::TestWithParam<Case> {
 protected:
  // One mesh for all: every case has a prompt of its own.
  static void SetUpTestSuite() { mesh_ = new CheckpointMesh; }
  static void TearDownTestSuite() {
    mesh_->ExpectNothingLeft();
    delete mesh_;
    mesh_ = nullptr;
  }
  // The files of the row that `request` leaves, by layers.
  static std::vector<std::string> SaveRow(const v1::GenerateRequest& request) {
    const std::vector<std::string> before = mesh_->SlabFiles();
    mesh_->Ask(request);
    mesh_->AwaitSaved();
    std::vector<std::string> files;
    for (const std::string& file : mesh_->SlabFiles()) {
      if (std::find(before.begin(), before.end(), file) == before.end()) files.push_back(file);
    }
    return files;
  }
  static CheckpointMesh* mesh_;
};
CheckpointMesh* Damaged::mesh_ = nullptr;

TEST_P(Damaged, IsAMissWithItsReasonAndTheRightIds) {
  const v1::GenerateRequest request = [] {
    v1::GenerateRequest one = AskFor(PromptText(GetParam().name));
    // One token: the finish save would have the same text but for it.
    one.mutable_options()->set_max_tokens(1);
    return one;
  }();
  const std::vector<std::string> files = SaveRow(request);
  ASSERT_EQ(files.size(), 2U);
  const std::vector<uint32_t> right = mesh_->Ask(Stateless(request)).ids;
  const double before = mesh_->store().Metric("kvmesh_blob_slabs_quarantined_total");
  GetParam().damage(files);

  const Answer disturbed = mesh_->Ask(request);
  ASSERT_TRUE(disturbed.status.ok()) << disturbed.status;
  EXPECT_EQ(disturbed.ids, right);
  EXPECT_EQ(disturbed.finished.usage().outcome(), "COLD");
  const std::vector<std::string>& causes = GetParam().causes;
  EXPECT_EQ(std::count(causes.begin(), causes.end(), disturbed.finished.usage().cause()), 1)
      << disturbed.finished.usage().cause();
  if (GetParam().quarantined) {
    EXPECT_TRUE(WaitUntil(
        [&] { return mesh_->store().Metric("kvmesh_blob_slabs_quarantined_total") > before; }));
  }
  // The prefill is saved again, under the same key, and found.
  EXPECT_TRUE(WaitUntil([&] {
    const Answer again = mesh_->Ask(request);
    EXPECT_EQ(again.ids, right);
    return IsWhole(again.finished.usage());
  }));
}

INSTANTIATE_TEST_SUITE_P(Each, Damaged, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// Sound, but another row's: its name is not that of what it holds.
TEST(DamagedRows, TwoRowsSlabsSwappedAreNeverMixed) {
  CheckpointMesh mesh;
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<uint32_t>> right;
  std::vector<std::string> heads;
  for (const std::string topic : {"one row", "another"}) {
    requests.push_back(AskFor(PromptText(topic), 1));
    right.push_back(mesh.Ask(requests.back()).ids);
  }
  mesh.AwaitSaved();
  for (const std::string& file : mesh.SlabFiles()) {
    if (absl::StrContains(std::filesystem::path(file).filename().string(), ".0-2.")) {
      heads.push_back(file);
    }
  }
  ASSERT_EQ(heads.size(), 2U);
  const std::string first = testing::ReadWholeFile(heads[0]);
  WriteFile(heads[0], testing::ReadWholeFile(heads[1]));
  WriteFile(heads[1], first);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer answer = mesh.Ask(requests[i]);
    EXPECT_EQ(answer.ids, right[i]);
    EXPECT_EQ(answer.finished.usage().outcome(), "COLD");
    EXPECT_TRUE(absl::StartsWith(answer.finished.usage().cause(), "restore_failed:"))
        << answer.finished.usage().cause();
  }
  EXPECT_TRUE(
      WaitUntil([&] { return mesh.store().Metric("kvmesh_blob_slabs_quarantined_total") == 2; }));
  mesh.ExpectNothingLeft();
}

}  // namespace
}  // namespace kvmesh::process_testing

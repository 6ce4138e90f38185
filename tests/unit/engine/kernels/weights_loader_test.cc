// Packed weights kept in a folder: read again bit by bit, and never believed when torn or foreign.
#include "services/shard/engine/weights_loader.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/mapped_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/shard/engine/weights_file.h"
#include "tests/unit/engine/kernels/weight_testing.h"

namespace kvmesh::shard {
namespace {

using model::WeightType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Sha256Digest DigestOf(uint8_t byte) {
  Sha256Digest digest;
  std::memset(digest.mutable_data(), byte, Sha256Digest::kSize);
  return digest;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

class WeightsLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "kvmesh-weights-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    cache_ = root_ + "/cache";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // Two matrices in a mapped file, as of a model.
  std::vector<MatrixSource> Sources(uint32_t seed) {
    std::vector<MatrixSource> sources;
    for (const WeightType type : {WeightType::kQ4_1, WeightType::kBF16}) {
      const TestWeights weights(type, 40, 64, seed++);
      const std::string path = root_ + "/" + NameOfType(type) + std::to_string(seed);
      WriteFile(path, {weights.tensor().data.begin(), weights.tensor().data.end()});
      files_.push_back(*model::MappedFile::Open(path));
      sources.push_back({.tensor = weights.tensor()});
      sources.back().tensor.data = files_.back()->bytes();
    }
    return sources;
  }

  std::vector<PackedMatrix> Load(uint8_t digest, const std::vector<MatrixSource>& sources,
                                 const std::string& id = "fma32") {
    WeightsLoader loader(
        pool_, {.id = id, .set = InstructionSet::kAvx2},
        {.cache_folder = cache_, .warn = [this](const std::string& s) { warnings_.push_back(s); }});
    auto loaded = loader.Load(DigestOf(digest), sources);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }

  std::string PathOf(uint8_t digest, const std::string& id = "fma32") const {
    return WeightsFilePath(cache_, {.digest = DigestOf(digest), .numerics_id = id, .matrices = {}});
  }

  std::vector<std::string> FilesInCache() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
      names.push_back(entry.path().string());
    }
    return names;
  }

  // The file of digest 1 is replaced by `content`: it is not believed, `reason` is told, the
  // weights are those of the sources, and the file is whole again.
  void ExpectRewritten(const std::string& content, const std::string& reason) {
    const std::vector<MatrixSource> sources = Sources(1);
    const std::vector<PackedMatrix> want = Load(1, sources);
    const std::string whole = ReadFile(PathOf(1));
    WriteFile(PathOf(1), content);
    warnings_.clear();
    ExpectSame(Load(1, sources), want);
    EXPECT_THAT(warnings_, ElementsAre(HasSubstr(reason)));
    EXPECT_EQ(ReadFile(PathOf(1)), whole);
  }

  static void ExpectSame(const std::vector<PackedMatrix>& got,
                         const std::vector<PackedMatrix>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].type(), want[i].type());
      ASSERT_EQ(got[i].rows(), want[i].rows());
      ASSERT_EQ(got[i].columns(), want[i].columns());
      EXPECT_EQ(std::memcmp(got[i].packed(), want[i].packed(), got[i].bytes()), 0);
    }
  }

  ComputePool pool_{2, [] {}};
  std::string root_;
  std::string cache_;
  std::vector<std::unique_ptr<model::MappedFile>> files_;
  std::vector<std::string> warnings_;
};

TEST_F(WeightsLoaderTest, WithoutAFolderNothingIsWritten) {
  const std::vector<MatrixSource> sources = Sources(1);
  cache_ = "";
  const std::vector<PackedMatrix> packed = Load(1, sources);
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/cache"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(WeightsLoaderTest, APartIsPackedOnceAndReadAfterwards) {
  const std::vector<PackedMatrix> first = Load(1, Sources(1));
  EXPECT_THAT(FilesInCache(), ElementsAre(PathOf(1)));
  // Other weights under the same digest: what comes back was read, not packed.
  ExpectSame(Load(1, Sources(5)), first);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(WeightsLoaderTest, PartsAndNumericsHaveFilesOfTheirOwn) {
  const std::vector<MatrixSource> sources = Sources(1);
  Load(1, sources);
  Load(2, sources);
  Load(1, sources, "round16");
  EXPECT_THAT(FilesInCache(),
              ::testing::UnorderedElementsAre(PathOf(1), PathOf(2), PathOf(1, "round16")));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(WeightsLoaderTest, TornFilesAreRewritten) {
  Load(1, Sources(1));
  const std::string whole = ReadFile(PathOf(1));
  const size_t header = 88 + 2 * 40 + 4;
  for (const size_t length : {size_t{0}, size_t{1}, header - 1}) {
    ExpectRewritten(whole.substr(0, length), "are no header of 172");
  }
  for (const size_t length : {header, whole.size() - 1}) {
    ExpectRewritten(whole.substr(0, length), "bytes, not " + std::to_string(whole.size()));
  }
  ExpectRewritten(whole + "x", "bytes, not " + std::to_string(whole.size()));
}

TEST_F(WeightsLoaderTest, ADamagedByteIsFoundWhereverItIs) {
  Load(1, Sources(1));
  const std::string whole = ReadFile(PathOf(1));
  const size_t header = 88 + 2 * 40 + 4;
  const auto with_byte = [&](size_t at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    return damaged;
  };
  ExpectRewritten(with_byte(0), "holds no packed weights");
  ExpectRewritten(with_byte(8), "version 17, not 1");
  for (size_t at = 12; at < header; at += 5) {
    ExpectRewritten(with_byte(at), "checksum of its header differs");
  }
  for (const size_t at : {size_t{192}, whole.size() / 2, whole.size() - 1}) {
    ExpectRewritten(with_byte(at), "checksum of weights differs");
  }
}

TEST_F(WeightsLoaderTest, FilesForSomethingElseAreNotUsed) {
  const std::vector<MatrixSource> sources = Sources(1);
  Load(2, sources);
  Load(1, sources, "round16");
  ExpectRewritten(ReadFile(PathOf(2)), "for other weights or another numerics id");
  ExpectRewritten(ReadFile(PathOf(1, "round16")), "for other weights or another numerics id");
  std::vector<MatrixSource> swapped = sources;
  std::swap(swapped[0], swapped[1]);
  Load(1, swapped);
  EXPECT_THAT(warnings_.back(), HasSubstr("for other weights or another numerics id"));
}

TEST_F(WeightsLoaderTest, OtherHeadsAreOtherWeights) {
  std::vector<MatrixSource> sources = Sources(1);
  sources[0].tensor.rope_interleaved = true;
  sources[0].rope_head_dim = 8;
  Load(1, sources);
  sources[0].rope_head_dim = 4;
  const std::vector<PackedMatrix> want = Load(2, sources);
  EXPECT_THAT(warnings_, IsEmpty());
  ExpectSame(Load(1, sources), want);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("for other weights")));
}

TEST_F(WeightsLoaderTest, AFolderThatCannotBeMadeCostsNoMoreThanThePacking) {
  const std::vector<MatrixSource> sources = Sources(1);
  const std::vector<PackedMatrix> want = Load(1, sources);
  WriteFile(root_ + "/file", "in the way");
  cache_ = root_ + "/file/cache";
  ExpectSame(Load(1, sources), want);
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.back(), HasSubstr("packed weights are not kept: " + cache_));
}

TEST_F(WeightsLoaderTest, WhatCannotBeReplacedLeavesNothingBehind) {
  const std::vector<MatrixSource> sources = Sources(1);
  std::filesystem::create_directories(PathOf(1) + "/in the way");
  Load(1, sources);
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("no regular file"), HasSubstr("cannot be replaced")));
  EXPECT_THAT(FilesInCache(), ElementsAre(PathOf(1)));
}

TEST_F(WeightsLoaderTest, WhatCannotBePackedIsRefusedWithAndWithoutAFolder) {
  std::vector<MatrixSource> sources = Sources(1);
  sources[1].tensor.shape = {40, 63};
  for (const std::string& folder : {std::string(), cache_}) {
    WeightsLoader loader(pool_, {.id = "fma32", .set = InstructionSet::kAvx2},
                         {.cache_folder = folder});
    EXPECT_EQ(loader.Load(DigestOf(1), sources).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(std::filesystem::exists(PathOf(1)));
}

}  // namespace
}  // namespace kvmesh::shard

// Reference answers and malformed files of the fixture folders, found when the test runs. Greedy
// ids of those that load are the engine's tests' concern.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/bytes.h"
#include "common/model/gguf.h"
#include "common/model/json.h"
#include "common/model/mapped_file.h"
#include "common/model/model.h"
#include "common/model/model_files.h"
#include "common/model/safetensors.h"
#include "common/text/tokenizer.h"
#include "tests/testing/test_data.h"
#include "tests/unit/model/largest_allocation.h"

namespace kvmesh::model {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using kvmesh::testing::FolderIsAbsent;
using kvmesh::testing::ListFolder;
using kvmesh::testing::ReadWholeFile;
using kvmesh::testing::TestDataRoot;

constexpr size_t kAllocationMax = 4 << 20;

Json ReadExpected(const fs::path& path) {
  return Json::parse(ReadWholeFile(path));
}

void ReportCases(int cases) {
  std::printf("%d cases ran\n", cases);
  EXPECT_GT(cases, 0) << "the folder is there and holds no case";
}

// Refusals come within two seconds and reserve nothing for announced sizes.
template <typename Open>
auto Bounded(Open open) {
  ResetLargestAllocation();
  const auto start = std::chrono::steady_clock::now();
  auto result = open();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_LT(LargestAllocation(), kAllocationMax);
  return result;
}

absl::StatusOr<GgufFile> ParseMapped(const fs::path& path, std::unique_ptr<MappedFile>* map) {
  auto opened = MappedFile::Open(path.string());
  if (!opened.ok()) return opened.status();
  *map = std::move(*opened);
  return GgufFile::Parse((*map)->bytes());
}

TEST(ModelGolden, MalformedGgufContainersAreRefused) {
  const fs::path folder = TestDataRoot() / "gguf" / "bad";
  if (FolderIsAbsent(folder)) return;
  const Json files = ReadExpected(folder / "expected.json")["files"];
  int cases = 0;
  for (const auto& [name, expected] : files.items()) {
    SCOPED_TRACE(absl::StrCat(name, ": ", expected["reason"].get<std::string>()));
    const auto status = Bounded([&, file = name] {
      std::unique_ptr<MappedFile> map;
      return ParseMapped(folder / file, &map).status();
    });
    EXPECT_EQ(status.ok(), !expected["must_be_refused"].get<bool>()) << status;
    ++cases;
  }
  ReportCases(cases);
}

TEST(ModelGolden, MalformedSafetensorsContainersAreRefused) {
  const fs::path folder = TestDataRoot() / "safetensors_bad";
  if (FolderIsAbsent(folder)) return;
  const Json files = ReadExpected(folder / "expected.json")["files"];
  int cases = 0;
  for (const auto& [name, expected] : files.items()) {
    SCOPED_TRACE(absl::StrCat(name, ": ", expected["reason"].get<std::string>()));
    const std::string path = (folder / name).string();
    const auto status = Bounded([&] {
      return absl::EndsWith(path, ".json") ? OpenSafetensorsIndex(path).status()
                                           : OpenSafetensorsFile(path).status();
    });
    EXPECT_EQ(status.ok(), !expected["must_be_refused"].get<bool>()) << status;
    EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), path)) << status;
    ++cases;
  }
  ReportCases(cases);
}

bool NamesOneOf(absl::string_view message, const Json& words) {
  for (const Json& word : words) {
    if (absl::StrContains(message, word.get<std::string>())) return true;
  }
  return words.empty();
}

// All that a shard opens before it serves: the model, and the tokenizer where there is one.
absl::Status OpenWhole(const std::string& path) {
  const auto model = Model::Open(path);
  if (!model.ok()) return model.status();
  const auto tokenizer = text::Tokenizer::FromModel(path);
  return absl::IsNotFound(tokenizer.status()) ? absl::OkStatus() : tokenizer.status();
}

TEST(ModelGolden, ModelsThatDoNotAddUpAreRefusedByName) {
  const fs::path folder = TestDataRoot() / "models_bad";
  if (FolderIsAbsent(folder)) return;
  const Json files = ReadExpected(folder / "expected.json")["files"];
  int cases = 0;
  for (const auto& [name, expected] : files.items()) {
    SCOPED_TRACE(absl::StrCat(name, ": ", expected["reason"].get<std::string>()));
    const std::string path = (folder / name).string();
    const auto status = Bounded([&] { return OpenWhole(path); });
    EXPECT_EQ(status.ok(), !expected["must_be_refused"].get<bool>()) << status;
    if (!status.ok()) {
      const absl::string_view message = status.message();
      ASSERT_TRUE(absl::StartsWith(message, path)) << status;
      EXPECT_TRUE(NamesOneOf(message.substr(path.size()),
                             expected.value("message_names_one_of", Json::array())))
          << status;
    }
    ++cases;
  }
  ReportCases(cases);
}

// A model opens, or its architecture is refused by the name that its own files give it.
void ExpectOpensOrIsRefusedByName(const std::string& path, const std::string& architecture) {
  const auto model = Model::Open(path);
  if (ArchitectureByName(architecture).has_value()) {
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_GT((*model)->WeightBytes({0, (*model)->config().layer_count}), 0u);
    return;
  }
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented) << model.status();
  EXPECT_TRUE(absl::StrContains(model.status().message(), absl::StrCat(" ", architecture, " ")))
      << model.status();
}

// The tensors that expected.json lists are those of the container, with their types and shapes.
void ExpectWeightsAreAsListed(const fs::path& folder, const Json& listed) {
  const fs::path index = folder / "model.safetensors.index.json";
  const auto weights = fs::exists(index)
                           ? OpenSafetensorsIndex(index.string())
                           : OpenSafetensorsFile((folder / "model.safetensors").string());
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->tensors.size(), listed.size());
  for (const StoredTensor& tensor : weights->tensors) {
    ASSERT_TRUE(listed.contains(tensor.name)) << tensor.name;
    EXPECT_EQ(Json(tensor.type_name), listed[tensor.name]["dtype"]) << tensor.name;
    EXPECT_EQ(Json(tensor.shape), listed[tensor.name]["shape"]) << tensor.name;
  }
}

TEST(ModelGolden, HuggingFaceModelsOpenOrAreRefusedByName) {
  const fs::path root = TestDataRoot() / "models";
  if (FolderIsAbsent(root)) return;
  int cases = 0;
  for (const fs::path& folder : ListFolder(root)) {
    if (!fs::exists(folder / "config.json")) continue;
    SCOPED_TRACE(folder.string());
    const Json config = ReadExpected(folder / "config.json");
    ExpectOpensOrIsRefusedByName(folder.string(), config["model_type"]);
    ExpectWeightsAreAsListed(folder, ReadExpected(folder / "expected.json")["weights"]);
    ++cases;
  }
  ReportCases(cases);
}

std::map<std::string, SafetensorsTensor> ByName(const MappedFile& map) {
  std::map<std::string, SafetensorsTensor> by_name;
  auto tensors = ParseSafetensors(map.bytes());
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  for (SafetensorsTensor& tensor : *tensors) by_name.emplace(tensor.name, std::move(tensor));
  return by_name;
}

// The first values of `tensor`, widened, are those of `expected` within one float32 rounding.
void ExpectWidensTo(const GgufTensor& tensor, const SafetensorsTensor& expected) {
  const size_t count = expected.data.size() / sizeof(float);
  const WeightTypeInfo& info = InfoOf(tensor.type);
  std::vector<float> widened(count);
  const size_t bytes = count / info.block_size * info.block_bytes;
  ASSERT_LE(bytes, tensor.data.size());
  Dequantize(tensor.type, tensor.data.subspan(0, bytes), absl::MakeSpan(widened));
  for (size_t i = 0; i < count; ++i) {
    const auto wanted = LoadUnaligned<float>(expected.data.data() + i * sizeof(float));
    ASSERT_LE(std::abs(widened[i] - wanted), 1e-6 * std::abs(wanted))
        << tensor.name << " element " << i << ": " << widened[i] << ", not " << wanted;
  }
}

TEST(ModelGolden, EveryQuantisedBlockWidensToTheReferenceValues) {
  const fs::path folder = TestDataRoot() / "gguf";
  if (FolderIsAbsent(folder)) return;
  std::unique_ptr<MappedFile> map;
  const auto file = ParseMapped(folder / "quant_blocks.gguf", &map);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto answers = MappedFile::Open((folder / "quant_blocks.expected.safetensors").string());
  ASSERT_TRUE(answers.ok()) << answers.status();
  const auto expected = ByName(**answers);
  int cases = 0;
  for (const GgufTensor& tensor : file->tensors()) {
    ASSERT_TRUE(expected.contains(tensor.name)) << tensor.name;
    ExpectWidensTo(tensor, expected.at(tensor.name));
    ++cases;
  }
  EXPECT_EQ(static_cast<size_t>(cases), expected.size());
  ReportCases(cases);
}

TEST(ModelGolden, GgufModelsOpenOrAreRefusedByNameAndTheirRowsWiden) {
  const fs::path folder = TestDataRoot() / "gguf";
  if (FolderIsAbsent(folder)) return;
  int cases = 0;
  for (const fs::path& path : ListFolder(folder)) {
    if (path.extension() != ".gguf" || path.filename() == "quant_blocks.gguf") continue;
    SCOPED_TRACE(path.string());
    std::unique_ptr<MappedFile> map;
    const auto file = ParseMapped(path, &map);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto architecture = file->GetString("general.architecture");
    ASSERT_TRUE(architecture.ok()) << architecture.status();
    ExpectOpensOrIsRefusedByName(path.string(), std::string(*architecture));
    fs::path answers_path = path;
    answers_path.replace_extension(".expected.safetensors");
    const auto answers = MappedFile::Open(answers_path.string());
    ASSERT_TRUE(answers.ok()) << answers.status();
    const auto expected = ByName(**answers);
    for (const GgufTensor& tensor : file->tensors()) {
      const auto it = expected.find(absl::StrCat("row0.", tensor.name));
      if (it != expected.end()) ExpectWidensTo(tensor, it->second);
    }
    ++cases;
  }
  ReportCases(cases);
}

}  // namespace
}  // namespace kvmesh::model

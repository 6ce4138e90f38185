#include "tests/unit/text/text_fixtures.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "gtest/gtest.h"
#include "tests/testing/test_data.h"

namespace kvmesh::text {
namespace {

using std::filesystem::path;

std::string Quoted(const path& file) {
  return "'" + file.string() + "'";
}

std::unique_ptr<Tokenizer> Load(const path& model) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromModel(model);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace

path TextFolder() {
  return testing::TestDataRoot() / "text";
}

Json ReadJson(const path& file) {
  Json parsed = Json::parse(testing::ReadWholeFile(file), nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(parsed.is_discarded()) << file;
  return parsed;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "kvmesh_text_XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempFolder::Write(const std::string& name, const std::string& contents) const {
  std::ofstream(path_ / name, std::ios::binary) << contents;
}

void Decompress(const path& file, const path& target) {
  const path plain = path(file).replace_extension();
  if (!std::filesystem::exists(file)) {
    std::error_code error;
    std::filesystem::copy_file(plain, target, error);
    EXPECT_FALSE(error) << plain << ": " << error.message();
    return;
  }
  const std::string command = "xz -dc " + Quoted(file) + " > " + Quoted(target);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT(cert-env33-c)
}

std::unique_ptr<Tokenizer> LoadFixtureTokenizer(const std::string& name) {
  const TempFolder folder;
  Decompress(TextFolder() / "tokenizers" / (name + ".tokenizer.json.xz"),
             folder.path() / "tokenizer.json");
  return Load(folder.path());
}

std::unique_ptr<Tokenizer> LoadFixtureGguf(const std::string& name) {
  const TempFolder folder;
  const path model = folder.path() / (name + ".gguf");
  Decompress(TextFolder() / "gguf" / (name + ".gguf.xz"), model);
  return Load(model);
}

void RunGoldens(const std::string& folder, const std::function<size_t(const path&)>& run) {
  const path root = TextFolder() / folder;
  if (testing::FolderIsAbsent(root)) return;
  size_t count = 0;
  for (const path& file : testing::ListFolder(root)) {
    SCOPED_TRACE(file.filename().string());
    count += run(file);
  }
  std::printf("%zu cases ran\n", count);
  EXPECT_GT(count, 0u);
}

size_t RunCases(const Json& golden, const std::function<void(const Json&)>& run) {
  for (const Json& test_case : golden["cases"]) {
    SCOPED_TRACE(test_case["name"].get<std::string>());
    run(test_case);
  }
  return golden["cases"].size();
}

std::string Rendered(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  std::string bytes;
  for (const uint32_t id : ids) bytes += std::string(tokenizer.TokenBytes(id));
  return bytes;
}

}  // namespace kvmesh::text

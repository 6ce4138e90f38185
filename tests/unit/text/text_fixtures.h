// The fixtures of text/: its JSON files, and its tokenizers, which lie there compressed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"

namespace kvmesh::text {

// Key order is kept: templates see it.
using Json = nlohmann::ordered_json;

std::filesystem::path TextFolder();

Json ReadJson(const std::filesystem::path& path);

// A fresh folder, removed at the end with all that lies in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void Write(const std::string& name, const std::string& contents) const;

 private:
  std::filesystem::path path_;
};

// Writes `path`, or `path` without compression, to `target`. Fails the test when neither is there.
void Decompress(const std::filesystem::path& path, const std::filesystem::path& target);

// tokenizers/NAME.tokenizer.json.xz, loaded as a model directory's; null after a failure of the
// test.
std::unique_ptr<Tokenizer> LoadFixtureTokenizer(const std::string& name);
// gguf/NAME.gguf.xz; null after a failure of the test.
std::unique_ptr<Tokenizer> LoadFixtureGguf(const std::string& name);

// Runs the cases of every file of text/FOLDER: `run` gives how many a file had. Prints their
// number; fails when there was none. A folder that is absent is named and passed over.
void RunGoldens(const std::string& folder,
                const std::function<size_t(const std::filesystem::path&)>& run);

// Runs each of golden["cases"], with its name in the trace. Gives how many.
size_t RunCases(const Json& golden, const std::function<void(const Json&)>& run);

// The bytes of all ids, joined.
std::string Rendered(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids);

}  // namespace kvmesh::text

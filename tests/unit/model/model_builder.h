// Small model files for tests: a GGUF and a safetensors writer, and a llama of two layers in both
// formats whose parts a test then changes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/gguf.h"
#include "nlohmann/json.hpp"

namespace kvmesh::model {

// Bytes of a number, little-endian.
template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A string as GGUF has it: length, then bytes.
std::string GgufString(const std::string& text);

struct GgufTensorSpec {
  std::vector<uint64_t> ne;  // innermost first, as in the file
  uint32_t type = 0;         // F32
  std::string data;
};

class GgufBuilder {
 public:
  // `value` is the value's bytes as they stand in the file. A key set again replaces its value.
  GgufBuilder& Set(const std::string& key, GgufValueType type, const std::string& value);
  GgufBuilder& SetUint32(const std::string& key, uint32_t value);
  GgufBuilder& SetFloat(const std::string& key, float value);
  GgufBuilder& SetString(const std::string& key, const std::string& value);
  GgufBuilder& SetStrings(const std::string& key, const std::vector<std::string>& values);
  GgufBuilder& Remove(const std::string& key);
  // F32, zero filled.
  GgufBuilder& AddTensor(const std::string& name, const std::vector<uint64_t>& ne);
  std::map<std::string, GgufTensorSpec>& tensors() { return tensors_; }

  std::string Bytes() const;

 private:
  std::map<std::string, std::pair<uint32_t, std::string>> values_;
  std::map<std::string, GgufTensorSpec> tensors_;
};

// Two layers, hidden 16, 4 heads over 2 key/value heads of 4, intermediate 24, 8 tokens, an output
// matrix.
GgufBuilder TinyGguf();

struct SafetensorsSpec {
  std::string dtype = "F32";
  std::vector<uint64_t> shape;
};

struct TinyFolder {
  nlohmann::json config;
  std::map<std::string, SafetensorsSpec> tensors;
};
// The same model; tensors are filled with bytes that depend on their names.
TinyFolder TinyLlama();
TinyFolder TinyQwen2();

std::string SafetensorsBytes(const std::map<std::string, SafetensorsSpec>& tensors);

// A folder of its own below the test's temporary directory, removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file in it and gives its path; its time of change lies a minute back.
  std::string Write(const std::string& name, const std::string& content) const;
  // config.json and model.safetensors. Gives the folder's path.
  std::string WriteModel(const TinyFolder& model) const;

 private:
  std::filesystem::path path_;
};

}  // namespace kvmesh::model

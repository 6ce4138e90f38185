// Reading of the expected values beside a reference model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/model/mapped_file.h"
#include "common/model/safetensors.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace kvmesh::shard {

// The tensors of an expected.safetensors.
class ReferenceTensors {
 public:
  explicit ReferenceTensors(const std::filesystem::path& path);

  bool Has(const std::string& name) const { return Find(name) != nullptr; }
  std::vector<float> Floats(const std::string& name) const;
  std::vector<uint32_t> Ids(const std::string& name) const;

 private:
  const model::SafetensorsTensor* Find(const std::string& name) const;

  std::unique_ptr<model::MappedFile> file_;
  std::vector<model::SafetensorsTensor> tensors_;
};

// Where the fetched models lie: KVMESH_MODEL_DIR, else build/models.
std::filesystem::path ModelFile(const std::string& name);

nlohmann::json ReadJson(const std::filesystem::path& path);

// Largest difference; infinite when a number is not finite, the lengths differ or there is nothing.
double MaxAbsDiff(const std::vector<float>& got, const std::vector<float>& want);

// Row `row` of [rows, columns].
std::vector<float> Row(const std::vector<float>& matrix, size_t row, size_t columns);

bool ArchitectureIsSupported(const std::string& architecture);

// That `path` is refused as a model whose architecture is not supported, and that it is named.
void ExpectRefusedByName(const std::filesystem::path& path, const std::vector<std::string>& names);

}  // namespace kvmesh::shard

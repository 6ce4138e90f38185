#include "tests/unit/engine/reference_data.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "common/model/model.h"
#include "gmock/gmock.h"
#include "tests/testing/test_data.h"

namespace kvmesh::shard {

ReferenceTensors::ReferenceTensors(const std::filesystem::path& path) {
  auto file = model::MappedFile::Open(path);
  if (!file.ok()) {
    ADD_FAILURE() << path << ": " << file.status();
    return;
  }
  file_ = *std::move(file);
  auto tensors = model::ParseSafetensors(file_->bytes());
  EXPECT_TRUE(tensors.ok()) << path << ": " << tensors.status();
  if (tensors.ok()) tensors_ = *std::move(tensors);
}

const model::SafetensorsTensor* ReferenceTensors::Find(const std::string& name) const {
  const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                               [&](const auto& tensor) { return tensor.name == name; });
  return it == tensors_.end() ? nullptr : &*it;
}

std::vector<float> ReferenceTensors::Floats(const std::string& name) const {
  const model::SafetensorsTensor* tensor = Find(name);
  if (tensor == nullptr || tensor->dtype != "F32") {
    ADD_FAILURE() << "no F32 tensor " << name;
    return {};
  }
  std::vector<float> values(tensor->data.size() / sizeof(float));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(float));
  return values;
}

std::vector<uint32_t> ReferenceTensors::Ids(const std::string& name) const {
  const model::SafetensorsTensor* tensor = Find(name);
  if (tensor == nullptr || tensor->dtype != "I64") {
    ADD_FAILURE() << "no I64 tensor " << name;
    return {};
  }
  std::vector<int64_t> values(tensor->data.size() / sizeof(int64_t));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(int64_t));
  return {values.begin(), values.end()};
}

std::filesystem::path ModelFile(const std::string& name) {
  const char* folder = std::getenv("KVMESH_MODEL_DIR");
  return std::filesystem::path(folder != nullptr ? folder : "build/models") / name;
}

nlohmann::json ReadJson(const std::filesystem::path& path) {
  return nlohmann::json::parse(testing::ReadWholeFile(path));
}

double MaxAbsDiff(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size() || got.empty()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  return largest;
}

std::vector<float> Row(const std::vector<float>& matrix, size_t row, size_t columns) {
  const auto begin = matrix.begin() + static_cast<ptrdiff_t>(row * columns);
  return {begin, begin + static_cast<ptrdiff_t>(columns)};
}

bool ArchitectureIsSupported(const std::string& architecture) {
  static const std::set<std::string> kSupported = {"LlamaForCausalLM", "Qwen2ForCausalLM", "llama",
                                                   "qwen2"};
  return kSupported.count(architecture) > 0;
}

void ExpectRefusedByName(const std::filesystem::path& path, const std::vector<std::string>& names) {
  const auto model = model::Model::Open(path);
  ASSERT_FALSE(model.ok()) << path << " opens";
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented) << model.status();
  const std::string message(model.status().message());
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return message.find(name) != std::string::npos;
  })) << message;
}

}  // namespace kvmesh::shard

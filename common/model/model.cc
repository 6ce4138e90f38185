#include "common/model/model.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/model/digests.h"
#include "common/model/model_files.h"
#include "common/model/tensor_layout.h"

namespace kvmesh::model {
namespace {

const Tensor* FindRole(const std::vector<RoleTensor>& tensors, WeightRole role) {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [role](const RoleTensor& each) { return each.role == role; });
  return it == tensors.end() ? nullptr : &it->tensor;
}

uint64_t BytesOf(const std::vector<RoleTensor>& tensors) {
  uint64_t bytes = 0;
  for (const RoleTensor& each : tensors) bytes += each.tensor.data.size();
  return bytes;
}

class MappedModel final : public Model {
 public:
  MappedModel(std::string path, ModelFiles files, ModelTensors tensors)
      : path_(std::move(path)), files_(std::move(files)), tensors_(std::move(tensors)) {}

  const ModelConfig& config() const override { return files_.config; }
  const std::string& path() const override { return path_; }

  absl::StatusOr<Tensor> Find(WeightRole role, uint32_t layer) const override {
    if (IsLayerRole(role) && layer >= tensors_.layers.size()) {
      return absl::NotFoundError(absl::StrCat("layer ", layer, " of ", tensors_.layers.size()));
    }
    if (role == WeightRole::kOutput && files_.config.tied_embedding) role = WeightRole::kEmbedding;
    const Tensor* tensor =
        FindRole(IsLayerRole(role) ? tensors_.layers[layer] : tensors_.global, role);
    if (tensor == nullptr) return absl::NotFoundError("the architecture has no such tensor");
    return *tensor;
  }

  void ReleasePages(const Tensor& tensor) const override {
    for (const std::unique_ptr<MappedFile>& map : files_.weights.maps) {
      const absl::Span<const uint8_t> bytes = map->bytes();
      const std::less_equal<const uint8_t*> not_after;
      if (not_after(bytes.data(), tensor.data.data()) &&
          not_after(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size())) {
        return map->ReleasePages(tensor.data);
      }
    }
  }

  uint64_t WeightBytes(LayerRange range) const override {
    const auto layer_count = static_cast<uint32_t>(tensors_.layers.size());
    uint64_t bytes = 0;
    for (uint32_t layer = range.begin; layer < std::min(range.end, layer_count); ++layer) {
      bytes += BytesOf(tensors_.layers[layer]);
    }
    const bool first = range.begin == 0;
    const bool last = range.end == layer_count;
    const bool tied = files_.config.tied_embedding;
    if (first || (last && tied)) bytes += GlobalBytes(WeightRole::kEmbedding);
    if (last) bytes += GlobalBytes(WeightRole::kOutputNorm);
    if (last && !tied) bytes += GlobalBytes(WeightRole::kOutput);
    return bytes;
  }

  std::string weight_types() const override {
    std::array<std::pair<uint64_t, WeightType>, kWeightTypeCount> bytes_by_type;
    for (size_t i = 0; i < bytes_by_type.size(); ++i) {
      bytes_by_type[i] = {0, static_cast<WeightType>(i)};
    }
    const auto count = [&](const std::vector<RoleTensor>& tensors) {
      for (const RoleTensor& each : tensors) {
        if (each.tensor.shape.size() < 2) continue;
        bytes_by_type[static_cast<size_t>(each.tensor.type)].first += each.tensor.data.size();
      }
    };
    count(tensors_.global);
    for (const std::vector<RoleTensor>& layer : tensors_.layers) count(layer);
    std::stable_sort(bytes_by_type.begin(), bytes_by_type.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string names;
    for (const auto& [bytes, type] : bytes_by_type) {
      if (bytes > 0) absl::StrAppend(&names, names.empty() ? "" : "+", InfoOf(type).name);
    }
    return names;
  }

  absl::StatusOr<ModelDigests> Digests(LayerRange range) const override {
    return ComputeDigests(path_, files_, tensors_, range);
  }

 private:
  uint64_t GlobalBytes(WeightRole role) const {
    return FindRole(tensors_.global, role)->data.size();
  }

  std::string path_;
  ModelFiles files_;
  ModelTensors tensors_;
};

}  // namespace

absl::StatusOr<LayerRange> StageRange(uint32_t stage, uint32_t stage_count, uint32_t layer_count) {
  if (stage_count == 0 || stage >= stage_count || stage_count > layer_count) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", stage, "/", stage_count, " of ",
                                                   layer_count,
                                                   " layers: stages count from 0 and "
                                                   "hold a layer at least"));
  }
  const uint32_t each = layer_count / stage_count;
  const uint32_t longer = layer_count % stage_count;  // the first so many have one layer more
  const uint32_t begin = stage * each + std::min(stage, longer);
  return LayerRange{begin, begin + each + (stage < longer ? 1 : 0)};
}

Sha256Digest ModelFingerprint(const std::vector<Sha256Digest>& all_layers,
                              const Sha256Digest& embedding, const Sha256Digest& head,
                              const Sha256Digest& config, const Sha256Digest& tokenizer) {
  Sha256 hash;
  for (const Sha256Digest& layer : all_layers) hash.Update(layer.bytes());
  for (const Sha256Digest* digest : {&embedding, &head, &config, &tokenizer}) {
    hash.Update(digest->bytes());
  }
  return hash.Digest();
}

absl::StatusOr<std::unique_ptr<Model>> Model::Open(const std::string& path) {
  KVMESH_ASSIGN_OR_RETURN(ModelFiles files, OpenModelFiles(path));
  absl::StatusOr<ModelTensors> tensors =
      ResolveTensors(files.config, files.naming, files.weights.tensors);
  if (!tensors.ok()) {
    return absl::Status(tensors.status().code(),
                        absl::StrCat(path, ": ", tensors.status().message()));
  }
  return std::unique_ptr<Model>(new MappedModel(path, std::move(files), std::move(*tensors)));
}

}  // namespace kvmesh::model

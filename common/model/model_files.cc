#include "common/model/model_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/gguf.h"
#include "common/model/gguf_config.h"
#include "common/model/hf_config.h"
#include "common/model/printable.h"
#include "common/model/safetensors.h"

namespace kvmesh::model {
namespace {

constexpr uint64_t kConfigBytesMax = 4 << 20;
constexpr uint64_t kIndexBytesMax = 64 << 20;

// The files that common/text reads.
constexpr absl::string_view kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                                 "chat_template.jinja", "chat_template.json"};

absl::Status InFile(absl::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

bool Exists(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

absl::StatusOr<WeightFiles> OpenFolderWeights(const std::string& folder) {
  const std::string index = absl::StrCat(folder, "/model.safetensors.index.json");
  if (Exists(index)) return OpenSafetensorsIndex(index);
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  absl::StatusOr<WeightFiles> files = OpenSafetensorsFile(single);
  if (absl::IsNotFound(files.status())) {
    const absl::string_view hint = Exists(absl::StrCat(folder, "/pytorch_model.bin"))
                                       ? "; pytorch_model.bin is a pickle, which is not read"
                                       : "";
    return absl::InvalidArgumentError(absl::StrCat(
        folder, ": neither model.safetensors nor model.safetensors.index.json is there", hint));
  }
  return files;
}

absl::StatusOr<ModelConfig> ReadFolderConfig(const std::string& folder) {
  absl::StatusOr<std::string> config =
      ReadSmallFile(absl::StrCat(folder, "/config.json"), kConfigBytesMax);
  if (absl::IsNotFound(config.status()) && Exists(absl::StrCat(folder, "/adapter_config.json"))) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": a LoRA adapter (adapter_config.json), not a model"));
  }
  KVMESH_RETURN_IF_ERROR(config.status());
  const std::string generation_path = absl::StrCat(folder, "/generation_config.json");
  std::optional<std::string> generation;
  if (Exists(generation_path)) {
    KVMESH_ASSIGN_OR_RETURN(generation, ReadSmallFile(generation_path, kConfigBytesMax));
  }
  std::optional<absl::string_view> generation_view;
  if (generation.has_value()) generation_view = *generation;
  absl::StatusOr<ModelConfig> parsed = ConfigFromHuggingFace(*config, generation_view);
  if (!parsed.ok()) return InFile(folder, parsed.status());
  return parsed;
}

absl::StatusOr<ModelFiles> OpenFolder(const std::string& folder) {
  ModelFiles files;
  KVMESH_ASSIGN_OR_RETURN(files.config, ReadFolderConfig(folder));
  KVMESH_ASSIGN_OR_RETURN(files.weights, OpenFolderWeights(folder));
  files.naming = TensorNaming::kHuggingFace;
  // Checkpoints exist that say they are tied and yet hold an output matrix; transformers uses the
  // matrix.
  const auto& tensors = files.weights.tensors;
  const bool has_output = std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.name == "lm_head.weight";
  });
  files.config.tied_embedding = files.config.tied_embedding && !has_output;
  for (const absl::string_view name : kTokenizerFiles) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!Exists(path)) continue;
    KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> map, MappedFile::Open(path));
    files.tokenizer_parts.emplace_back(std::string(name), map->bytes());
    files.tokenizer_maps.push_back(std::move(map));
  }
  return files;
}

absl::StatusOr<ModelFiles> OpenGguf(const std::string& path) {
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> map, MappedFile::Open(path));
  const absl::StatusOr<GgufFile> gguf = GgufFile::Parse(map->bytes());
  if (!gguf.ok()) return InFile(path, gguf.status());
  ModelFiles files;
  absl::StatusOr<ModelConfig> config = ConfigFromGguf(*gguf);
  if (!config.ok()) return InFile(path, config.status());
  files.config = std::move(*config);
  files.naming = TensorNaming::kGguf;
  for (const GgufTensor& tensor : gguf->tensors()) {
    files.weights.tensors.push_back({.name = tensor.name,
                                     .type = tensor.type,
                                     .type_name = std::string(InfoOf(tensor.type).name),
                                     .shape = tensor.shape,
                                     .data = tensor.data});
  }
  for (const absl::string_view key : gguf->keys()) {
    if (!absl::StartsWith(key, "tokenizer.")) continue;
    const GgufValue& value = *gguf->Find(key);
    files.tokenizer_parts.emplace_back(
        absl::StrCat(key, ":", GgufValueTypeName(value.type), ":",
                     GgufValueTypeName(value.element_type), ":", value.count),
        value.bytes);
  }
  std::sort(files.tokenizer_parts.begin(), files.tokenizer_parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  files.weights.maps.push_back(std::move(map));
  return files;
}

}  // namespace

absl::StatusOr<WeightFiles> OpenSafetensorsFile(const std::string& path) {
  WeightFiles files;
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> map, MappedFile::Open(path));
  absl::StatusOr<std::vector<SafetensorsTensor>> tensors = ParseSafetensors(map->bytes());
  if (!tensors.ok()) return InFile(path, tensors.status());
  for (SafetensorsTensor& tensor : *tensors) {
    files.tensors.push_back({.name = std::move(tensor.name),
                             .type = tensor.type,
                             .type_name = std::move(tensor.dtype),
                             .shape = std::move(tensor.shape),
                             .data = tensor.data});
  }
  files.maps.push_back(std::move(map));
  return files;
}

absl::StatusOr<WeightFiles> OpenSafetensorsIndex(const std::string& index_path) {
  KVMESH_ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(index_path, kIndexBytesMax));
  const absl::StatusOr<std::map<std::string, std::string>> index = ParseSafetensorsIndex(json);
  if (!index.ok()) return InFile(index_path, index.status());
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const auto& [tensor, file] : *index) names_by_file[file].push_back(tensor);
  WeightFiles all;
  for (const auto& [file, names] : names_by_file) {
    const std::string path = absl::StrCat(FolderOf(index_path), "/", file);
    absl::StatusOr<WeightFiles> part = OpenSafetensorsFile(path);
    if (absl::IsNotFound(part.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": names ", Printable(file), ", which is not there"));
    }
    KVMESH_RETURN_IF_ERROR(part.status());
    std::map<absl::string_view, StoredTensor*> in_file;
    for (StoredTensor& tensor : part->tensors) in_file.emplace(tensor.name, &tensor);
    for (const std::string& name : names) {
      const auto it = in_file.find(name);
      if (it == in_file.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(index_path, ": tensor ", Printable(name), " is not in ", Printable(file)));
      }
      all.tensors.push_back(*it->second);
    }
    all.maps.push_back(std::move(part->maps.front()));
  }
  return all;
}

absl::StatusOr<ModelFiles> OpenModelFiles(const std::string& path) {
  struct stat info = {};
  const bool is_folder = stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return is_folder ? OpenFolder(path) : OpenGguf(path);
}

}  // namespace kvmesh::model

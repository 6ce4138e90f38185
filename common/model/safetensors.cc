#include "common/model/safetensors.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/bytes.h"
#include "common/model/json.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's limit
constexpr size_t kDimensionsMax = 8;

struct Dtype {
  absl::string_view name;
  uint64_t bits;
  std::optional<WeightType> type;
};
constexpr Dtype kDtypes[] = {
    {"F32", 32, WeightType::kF32}, {"F16", 16, WeightType::kF16}, {"BF16", 16, WeightType::kBF16},
    {"F64", 64, std::nullopt},     {"I64", 64, std::nullopt},     {"U64", 64, std::nullopt},
    {"I32", 32, std::nullopt},     {"U32", 32, std::nullopt},     {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},     {"I8", 8, std::nullopt},       {"U8", 8, std::nullopt},
    {"BOOL", 8, std::nullopt},     {"F8_E4M3", 8, std::nullopt},  {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},  {"C64", 64, std::nullopt},     {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},  {"F6_E3M2", 6, std::nullopt},
};

absl::Status Invalid(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Printable(name), ": ", why));
}

absl::Status CheckMetadata(const Json& metadata) {
  if (!metadata.is_object()) return absl::InvalidArgumentError("__metadata__ is not an object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("__metadata__: the value of ", Printable(key), " is not a string"));
    }
  }
  return absl::OkStatus();
}

// A list of whole numbers from 0 to 2^64-1.
absl::StatusOr<std::vector<uint64_t>> Numbers(absl::string_view name, const Json& tensor,
                                              const char* key, size_t count_max) {
  const auto it = tensor.find(key);
  if (it == tensor.end() || !it->is_array() || it->size() > count_max) {
    return Invalid(name, absl::StrCat(key, " is not a list of at most ", count_max, " numbers"));
  }
  std::vector<uint64_t> numbers;
  for (const Json& number : *it) {
    if (!number.is_number_unsigned()) {
      return Invalid(name, absl::StrCat(key, " holds something else than whole numbers from 0 on"));
    }
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

absl::StatusOr<uint64_t> BytesOf(absl::string_view name, const Dtype& dtype,
                                 const std::vector<uint64_t>& shape) {
  std::optional<uint64_t> product = 1;
  for (const uint64_t dimension : shape) {
    product = CheckedMultiply(*product, dimension);
    if (!product.has_value()) return Invalid(name, "the product of its shape does not fit 64 bits");
  }
  const std::optional<uint64_t> bits = CheckedMultiply(*product, dtype.bits);
  if (!bits.has_value()) return Invalid(name, "its size does not fit 64 bits");
  if (*bits % 8 != 0) return Invalid(name, "its size is no whole number of bytes");
  return *bits / 8;
}

absl::StatusOr<SafetensorsTensor> ReadTensor(const std::string& name, const Json& json,
                                             absl::Span<const uint8_t> data) {
  if (name.empty() || name.find('\0') != std::string::npos) {
    return Invalid(name, "an empty name, or one with a NUL character");
  }
  if (!json.is_object()) return Invalid(name, "its description is not an object");
  const auto dtype_json = json.find("dtype");
  if (dtype_json == json.end() || !dtype_json->is_string()) {
    return Invalid(name, "dtype is missing or not a string");
  }
  const std::string dtype_name = dtype_json->get<std::string>();
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const Dtype& row) { return row.name == dtype_name; });
  if (dtype == std::end(kDtypes)) {
    return Invalid(name, absl::StrCat("dtype ", Printable(dtype_name), " does not exist"));
  }
  KVMESH_ASSIGN_OR_RETURN(std::vector<uint64_t> shape,
                          Numbers(name, json, "shape", kDimensionsMax));
  KVMESH_ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets,
                          Numbers(name, json, "data_offsets", 2));
  KVMESH_ASSIGN_OR_RETURN(const uint64_t size, BytesOf(name, *dtype, shape));
  if (offsets.size() != 2) return Invalid(name, "data_offsets does not hold two numbers");
  if (offsets[0] > offsets[1] || offsets[1] > data.size()) {
    return Invalid(name, absl::StrCat("data_offsets ", offsets[0], " to ", offsets[1],
                                      " do not lie in the file's ", data.size(), " bytes of data"));
  }
  if (offsets[1] - offsets[0] != size) {
    return Invalid(name, absl::StrCat("data_offsets hold ", offsets[1] - offsets[0],
                                      " bytes, dtype and shape ask for ", size));
  }
  return SafetensorsTensor{.name = name,
                           .dtype = dtype_name,
                           .type = dtype->type,
                           .shape = std::move(shape),
                           .data = data.subspan(offsets[0], size)};
}

// Sorted by place, the tensors must lie end to end from the first byte of the data to the last.
absl::Status CheckCoverage(const std::vector<SafetensorsTensor>& tensors,
                           absl::Span<const uint8_t> data) {
  std::vector<const SafetensorsTensor*> in_order;
  in_order.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::make_pair(a->data.data(), a->data.size()) <
           std::make_pair(b->data.data(), b->data.size());
  });
  uint64_t covered = 0;
  for (const SafetensorsTensor* tensor : in_order) {
    const auto begin = static_cast<uint64_t>(tensor->data.data() - data.data());
    if (begin < covered) return Invalid(tensor->name, "it shares bytes with another tensor");
    if (begin > covered) {
      return Invalid(tensor->name, absl::StrCat("bytes ", covered, " to ", begin,
                                                " before it belong to no tensor"));
    }
    covered = begin + tensor->data.size();
  }
  if (covered != data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.size() - covered, " bytes after the last tensor belong to none"));
  }
  return absl::OkStatus();
}

absl::Status CheckFileName(absl::string_view tensor, absl::string_view file) {
  const bool plain = !file.empty() && file != "." && file != ".." && file.size() <= 255 &&
                     file.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
  if (!plain) {
    return Invalid(tensor, absl::StrCat("weight_map names ", Printable(file),
                                        ", which is not the plain name of a file in the folder"));
  }
  if (!absl::EndsWith(file, ".safetensors")) {
    return Invalid(tensor, absl::StrCat("weight_map names ", Printable(file),
                                        ", which is not a .safetensors file"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(absl::Span<const uint8_t> file) {
  ByteReader reader(file);
  const auto header_bytes = reader.Read<uint64_t>();
  if (!header_bytes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file: shorter than the eight bytes of the header's length",
                     LooksLike(file)));
  }
  if (*header_bytes > kHeaderBytesMax || *header_bytes > reader.remaining()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file: a header of ", *header_bytes, " bytes is announced; ",
                     "the file has ", reader.remaining(), " more", LooksLike(file)));
  }
  const auto header = reader.Take(*header_bytes).value_or(absl::Span<const uint8_t>());
  const absl::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  if (!absl::StartsWith(text, "{")) {
    return absl::InvalidArgumentError("the header does not begin with an opening brace");
  }
  const absl::StatusOr<Json> json = ParseJson(text, {.depth_max = 4});
  if (!json.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the header: ", json.status().message()));
  }
  const auto data = reader.Take(reader.remaining()).value_or(absl::Span<const uint8_t>());
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      KVMESH_RETURN_IF_ERROR(CheckMetadata(value));
      continue;
    }
    KVMESH_ASSIGN_OR_RETURN(SafetensorsTensor tensor, ReadTensor(name, value, data));
    tensors.push_back(std::move(tensor));
  }
  KVMESH_RETURN_IF_ERROR(CheckCoverage(tensors, data));
  return tensors;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(absl::string_view json) {
  KVMESH_ASSIGN_OR_RETURN(const Json index, ParseJson(json));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError("weight_map is missing or not an object");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      return Invalid(tensor, "weight_map gives it a file that is not a string");
    const std::string name = file.get<std::string>();
    KVMESH_RETURN_IF_ERROR(CheckFileName(tensor, name));
    files.emplace(tensor, name);
  }
  if (files.empty()) return absl::InvalidArgumentError("weight_map is empty");
  return files;
}

}  // namespace kvmesh::model

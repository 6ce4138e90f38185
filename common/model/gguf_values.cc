// The typed getters of GgufFile.
#include <cmath>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/bytes.h"
#include "common/model/gguf.h"

namespace kvmesh::model {
namespace {

bool IsInteger(GgufValueType type) {
  return type != GgufValueType::kFloat32 && type != GgufValueType::kFloat64 &&
         type != GgufValueType::kBool && type != GgufValueType::kString &&
         type != GgufValueType::kArray;
}

bool IsNumber(GgufValueType type) {
  return IsInteger(type) || type == GgufValueType::kFloat32 || type == GgufValueType::kFloat64;
}

// A number at `bytes`, as T. Values that T cannot hold exactly are the caller's concern.
template <typename T>
T LoadNumber(GgufValueType type, const uint8_t* bytes) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kBool:
      return static_cast<T>(*bytes);
    case GgufValueType::kInt8:
      return static_cast<T>(LoadUnaligned<int8_t>(bytes));
    case GgufValueType::kUint16:
      return static_cast<T>(LoadUnaligned<uint16_t>(bytes));
    case GgufValueType::kInt16:
      return static_cast<T>(LoadUnaligned<int16_t>(bytes));
    case GgufValueType::kUint32:
      return static_cast<T>(LoadUnaligned<uint32_t>(bytes));
    case GgufValueType::kInt32:
      return static_cast<T>(LoadUnaligned<int32_t>(bytes));
    case GgufValueType::kUint64:
      return static_cast<T>(LoadUnaligned<uint64_t>(bytes));
    case GgufValueType::kInt64:
      return static_cast<T>(LoadUnaligned<int64_t>(bytes));
    case GgufValueType::kFloat32:
      return static_cast<T>(LoadUnaligned<float>(bytes));
    case GgufValueType::kFloat64:
      return static_cast<T>(LoadUnaligned<double>(bytes));
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return T{};
}

std::string TypeOf(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) return std::string(GgufValueTypeName(value.type));
  return absl::StrCat("array of ", GgufValueTypeName(value.element_type));
}

absl::Status Absent(absl::string_view key) {
  return absl::NotFoundError(absl::StrCat("key ", key, " is missing"));
}

absl::Status WrongType(absl::string_view key, const GgufValue& value, absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("key ", key, " is of type ", TypeOf(value), ", not ", wanted));
}

bool IsArrayOf(const GgufValue& value, bool (*element)(GgufValueType)) {
  return value.type == GgufValueType::kArray && element(value.element_type);
}

uint64_t NumberBytes(const GgufValue& array) {
  return array.count == 0 ? 0 : array.bytes.size() / array.count;
}

}  // namespace

absl::string_view GgufValueTypeName(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return "uint8";
    case GgufValueType::kInt8:
      return "int8";
    case GgufValueType::kUint16:
      return "uint16";
    case GgufValueType::kInt16:
      return "int16";
    case GgufValueType::kUint32:
      return "uint32";
    case GgufValueType::kInt32:
      return "int32";
    case GgufValueType::kFloat32:
      return "float32";
    case GgufValueType::kBool:
      return "bool";
    case GgufValueType::kString:
      return "string";
    case GgufValueType::kArray:
      return "array";
    case GgufValueType::kUint64:
      return "uint64";
    case GgufValueType::kInt64:
      return "int64";
    case GgufValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

const GgufValue* GgufFile::Find(absl::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::StatusOr<uint64_t> GgufFile::GetUint(absl::string_view key, uint64_t min,
                                           uint64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (!IsInteger(value->type)) return WrongType(key, *value, "an integer");
  const auto as_signed = LoadNumber<int64_t>(value->type, value->bytes.data());
  const auto number = static_cast<uint64_t>(as_signed);
  const bool negative = as_signed < 0 && value->type != GgufValueType::kUint64;
  if (negative || number < min || number > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", key, " is ", negative ? absl::StrCat(as_signed) : absl::StrCat(number),
                     "; allowed are ", min, " to ", max));
  }
  return number;
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (!IsNumber(value->type)) return WrongType(key, *value, "a number");
  const auto number = LoadNumber<double>(value->type, value->bytes.data());
  if (!std::isfinite(number)) {
    return absl::InvalidArgumentError(absl::StrCat("key ", key, " is ", number));
  }
  return number;
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufValueType::kBool) return WrongType(key, *value, "bool");
  return value->bytes[0] != 0;
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (value->type != GgufValueType::kString) return WrongType(key, *value, "string");
  return absl::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::GetStrings(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (!IsArrayOf(*value, [](GgufValueType type) { return type == GgufValueType::kString; })) {
    return WrongType(key, *value, "an array of strings");
  }
  std::vector<absl::string_view> strings;
  strings.reserve(value->count);  // each took 8 bytes of the file at least
  ByteReader reader(value->bytes);
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t length = reader.Read<uint64_t>().value_or(0);  // bounds were checked by Parse
    const auto bytes = reader.Take(length).value_or(absl::Span<const uint8_t>());
    strings.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (!IsArrayOf(*value, IsInteger)) return WrongType(key, *value, "an array of integers");
  const uint64_t size = NumberBytes(*value);
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint8_t* bytes = value->bytes.data() + i * size;
    const auto number = LoadNumber<int64_t>(value->element_type, bytes);
    if (value->element_type == GgufValueType::kUint64 && number < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", key, ": element ", i, " is too large"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(absl::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Absent(key);
  if (!IsArrayOf(*value, IsNumber)) return WrongType(key, *value, "an array of numbers");
  const uint64_t size = NumberBytes(*value);
  std::vector<float> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers.push_back(LoadNumber<float>(value->element_type, value->bytes.data() + i * size));
  }
  return numbers;
}

}  // namespace kvmesh::model

// The GGUF container, versions 2 and 3: metadata and tensor descriptions, parsed from the bytes of
// a whole file. Pure: no files, no allocation that is not bounded by the bytes given. Every length
// and offset is checked before use. Source: the GGUF specification (ggml/docs/gguf.md); what
// llama.cpp refuses is refused here as well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/weights.h"

namespace kvmesh::model {

// The numbers are the file's.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
absl::string_view GgufValueTypeName(GgufValueType type);  // "uint32"

// One metadata value: a view into the file's bytes.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  GgufValueType element_type = GgufValueType::kUint8;  // arrays only
  uint64_t count = 1;                                  // elements of an array, else 1
  absl::Span<const uint8_t> bytes;  // string: its text; array: its elements; else the number
};

struct GgufTensor {
  std::string name;
  WeightType type = WeightType::kF32;
  std::vector<uint64_t> shape;  // outermost first: the reverse of the file's ne
  absl::Span<const uint8_t> data;
};

// Views into the bytes given to Parse, which must outlive it. Immutable; thread-safe.
//
// The getters: NotFound when the key is absent, InvalidArgument when its value has another type or
// is out of range; the message names the key. Any integer type serves for an integer, any number
// type for a float.
class GgufFile {
 public:
  // InvalidArgument: malformed (key or tensor, and reason, are named).
  // Unimplemented: a version, or a tensor type of the format, that is not supported.
  static absl::StatusOr<GgufFile> Parse(absl::Span<const uint8_t> file);

  // Null when the key is absent.
  const GgufValue* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  absl::StatusOr<uint64_t> GetUint(absl::string_view key, uint64_t min, uint64_t max) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;  // finite
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  // The bytes as they are: only keys are checked to be UTF-8.
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(absl::string_view key) const;

  // In the order of the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // The order of the file.
  const std::vector<absl::string_view>& keys() const { return keys_; }

 private:
  friend class GgufParser;

  std::vector<absl::string_view> keys_;
  absl::flat_hash_map<absl::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace kvmesh::model

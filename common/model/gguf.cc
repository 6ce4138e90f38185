#include "common/model/gguf.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/model/bytes.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

constexpr uint64_t kKeyBytesMax = 65535;  // the specification's limits
constexpr uint64_t kTensorNameBytesMax = 64;
constexpr uint32_t kDimensionsMax = 4;
constexpr uint64_t kDefaultAlignment = 32;
// The fewest bytes that a key/value pair and a tensor description take: announced counts are held
// against them.
constexpr uint64_t kPairBytesMin = 8 + 1 + 4 + 1;
constexpr uint64_t kTensorInfoBytesMin = 8 + 1 + 4 + 8 + 4 + 8;

struct TensorTypeRow {
  uint32_t number;
  absl::string_view name;
  std::optional<WeightType> type;  // absent: a type of the format that is not supported
};

// ggml.h, enum ggml_type. Numbers that are not here do not exist or were withdrawn.
constexpr TensorTypeRow kTensorTypes[] = {
    {0, "f32", WeightType::kF32},
    {1, "f16", WeightType::kF16},
    {2, "q4_0", WeightType::kQ4_0},
    {3, "q4_1", WeightType::kQ4_1},
    {6, "q5_0", WeightType::kQ5_0},
    {7, "q5_1", WeightType::kQ5_1},
    {8, "q8_0", WeightType::kQ8_0},
    {9, "q8_1", std::nullopt},
    {10, "q2_k", WeightType::kQ2_K},
    {11, "q3_k", WeightType::kQ3_K},
    {12, "q4_k", WeightType::kQ4_K},
    {13, "q5_k", WeightType::kQ5_K},
    {14, "q6_k", WeightType::kQ6_K},
    {15, "q8_k", std::nullopt},
    {16, "iq2_xxs", std::nullopt},
    {17, "iq2_xs", std::nullopt},
    {18, "iq3_xxs", std::nullopt},
    {19, "iq1_s", std::nullopt},
    {20, "iq4_nl", WeightType::kIQ4_NL},
    {21, "iq3_s", std::nullopt},
    {22, "iq2_s", std::nullopt},
    {23, "iq4_xs", WeightType::kIQ4_XS},
    {24, "i8", std::nullopt},
    {25, "i16", std::nullopt},
    {26, "i32", std::nullopt},
    {27, "i64", std::nullopt},
    {28, "f64", std::nullopt},
    {29, "iq1_m", std::nullopt},
    {30, "bf16", WeightType::kBF16},
    {34, "tq1_0", std::nullopt},
    {35, "tq2_0", std::nullopt},
    {39, "mxfp4", std::nullopt},
};

absl::StatusOr<WeightType> TensorType(uint32_t number) {
  for (const TensorTypeRow& row : kTensorTypes) {
    if (row.number != number) continue;
    if (row.type.has_value()) return *row.type;
    return absl::UnimplementedError(
        absl::StrCat("weights of type ", row.name, " are not supported"));
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor type ", number, " does not exist"));
}

// Bytes of one value; 0 for strings and arrays. Nullopt: no such type.
std::optional<uint64_t> ValueBytes(uint32_t type) {
  switch (static_cast<GgufValueType>(type)) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return std::nullopt;
}

bool AllBooleans(absl::Span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte <= 1; });
}

absl::Status EndsInside(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the file ends inside ", what));
}

}  // namespace

// One pass over the file, from the front.
class GgufParser {
 public:
  explicit GgufParser(absl::Span<const uint8_t> file) : file_(file), reader_(file) {}

  absl::StatusOr<GgufFile> Run() {
    KVMESH_RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < pair_count_; ++i) KVMESH_RETURN_IF_ERROR(ReadPair());
    KVMESH_RETURN_IF_ERROR(ReadAlignment());
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensor_count_; ++i) KVMESH_RETURN_IF_ERROR(ReadTensorInfo(&offsets));
    KVMESH_RETURN_IF_ERROR(PlaceTensors(offsets));
    return std::move(out_);
  }

 private:
  absl::Status ReadHeader() {
    const auto magic = reader_.Take(4);
    if (!magic.has_value() || !std::equal(magic->begin(), magic->end(), "GGUF")) {
      return absl::InvalidArgumentError(absl::StrCat("not a GGUF file", LooksLike(file_)));
    }
    const auto version = reader_.Read<uint32_t>();
    if (!version.has_value()) return EndsInside("the version");
    if (*version != 2 && *version != 3) {
      if ((*version & 0xFFFF) == 0 && *version != 0) {
        return absl::UnimplementedError("a big-endian GGUF file");
      }
      return absl::UnimplementedError(
          absl::StrCat("GGUF version ", *version, "; versions 2 and 3 are supported"));
    }
    const auto tensor_count = reader_.Read<uint64_t>();
    const auto pair_count = reader_.Read<uint64_t>();
    if (!tensor_count.has_value() || !pair_count.has_value()) return EndsInside("the counts");
    if (*pair_count > reader_.remaining() / kPairBytesMin) {
      return absl::InvalidArgumentError(
          absl::StrCat(*pair_count, " key/value pairs are announced, more than the file can hold"));
    }
    if (*tensor_count > reader_.remaining() / kTensorInfoBytesMin) {
      return absl::InvalidArgumentError(
          absl::StrCat(*tensor_count, " tensors are announced, more than the file can hold"));
    }
    tensor_count_ = *tensor_count;
    pair_count_ = *pair_count;
    return absl::OkStatus();
  }

  std::optional<absl::Span<const uint8_t>> ReadString() {
    const auto length = reader_.Read<uint64_t>();
    if (!length.has_value()) return std::nullopt;
    return reader_.Take(*length);
  }

  // A key or tensor name: UTF-8 without NUL, not empty, of bounded length.
  absl::StatusOr<absl::string_view> ReadName(absl::string_view what, uint64_t bytes_max) {
    const auto bytes = ReadString();
    if (!bytes.has_value()) return EndsInside(absl::StrCat("a ", what));
    const absl::string_view name(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    if (name.empty()) return absl::InvalidArgumentError(absl::StrCat("an empty ", what));
    if (name.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ", what, " of ", name.size(), " bytes; the format allows ", bytes_max));
    }
    if (!IsUtf8(name) || name.find('\0') != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("a ", what, " is not plain UTF-8: ", Printable(name)));
    }
    return name;
  }

  absl::Status ReadPair() {
    KVMESH_ASSIGN_OR_RETURN(const absl::string_view key, ReadName("key", kKeyBytesMax));
    const auto type = reader_.Read<uint32_t>();
    if (!type.has_value()) return EndsInside(absl::StrCat("the value of ", Printable(key)));
    KVMESH_ASSIGN_OR_RETURN(const GgufValue value, ReadValue(key, *type));
    if (!out_.values_.emplace(key, value).second) {
      return absl::InvalidArgumentError(absl::StrCat("duplicate key ", Printable(key)));
    }
    out_.keys_.push_back(key);
    return absl::OkStatus();
  }

  absl::StatusOr<GgufValue> ReadValue(absl::string_view key, uint32_t type) {
    const auto size = ValueBytes(type);
    if (!size.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", Printable(key), ": value type ", type, " does not exist"));
    }
    GgufValue value;
    value.type = static_cast<GgufValueType>(type);
    if (value.type == GgufValueType::kArray) return ReadArray(key);
    const auto bytes = value.type == GgufValueType::kString ? ReadString() : reader_.Take(*size);
    if (!bytes.has_value()) return EndsInside(absl::StrCat("the value of ", Printable(key)));
    value.bytes = *bytes;
    if (value.type == GgufValueType::kBool && !AllBooleans(value.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", Printable(key), ": a boolean that is neither 0 nor 1"));
    }
    return value;
  }

  absl::StatusOr<GgufValue> ReadArray(absl::string_view key) {
    const std::string what = absl::StrCat("the array ", Printable(key));
    const auto type = reader_.Read<uint32_t>();
    const auto count = reader_.Read<uint64_t>();
    if (!type.has_value() || !count.has_value()) return EndsInside(what);
    const auto size = ValueBytes(*type);
    if (!size.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": element type ", *type, " does not exist"));
    }
    GgufValue value{.type = GgufValueType::kArray,
                    .element_type = static_cast<GgufValueType>(*type),
                    .count = *count};
    if (value.element_type == GgufValueType::kArray) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": arrays of arrays are not supported"));
    }
    const uint64_t begin = reader_.position();
    if (value.element_type == GgufValueType::kString) {
      for (uint64_t i = 0; i < *count; ++i) {
        if (!ReadString().has_value()) return EndsInside(what);
      }
    } else {
      const auto bytes = CheckedMultiply(*count, *size);
      if (!bytes.has_value() || !reader_.Take(*bytes).has_value()) return EndsInside(what);
    }
    value.bytes = file_.subspan(begin, reader_.position() - begin);
    if (value.element_type == GgufValueType::kBool && !AllBooleans(value.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": a boolean that is neither 0 nor 1"));
    }
    return value;
  }

  absl::Status ReadAlignment() {
    const GgufValue* value = out_.Find("general.alignment");
    if (value == nullptr) return absl::OkStatus();
    if (value->type != GgufValueType::kUint32) {
      return absl::InvalidArgumentError(absl::StrCat(
          "general.alignment is of type ", GgufValueTypeName(value->type), ", not uint32"));
    }
    alignment_ = LoadUnaligned<uint32_t>(value->bytes.data());
    if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("general.alignment is ", alignment_, ", not a power of two"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensorInfo(std::vector<uint64_t>* offsets) {
    KVMESH_ASSIGN_OR_RETURN(const absl::string_view name,
                            ReadName("tensor name", kTensorNameBytesMax));
    const std::string what = absl::StrCat("tensor ", Printable(name));
    const auto dimensions = reader_.Read<uint32_t>();
    if (!dimensions.has_value()) return EndsInside(what);
    if (*dimensions < 1 || *dimensions > kDimensionsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " has ", *dimensions, " dimensions; 1 to ", kDimensionsMax, " are allowed"));
    }
    GgufTensor tensor{.name = std::string(name)};
    for (uint32_t i = 0; i < *dimensions; ++i) {
      const auto dimension = reader_.Read<uint64_t>();
      if (!dimension.has_value()) return EndsInside(what);
      if (*dimension == 0 || *dimension > uint64_t{std::numeric_limits<int64_t>::max()}) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, ": dimension ", i, " is ", static_cast<int64_t>(*dimension)));
      }
      tensor.shape.insert(tensor.shape.begin(), *dimension);
    }
    const auto type = reader_.Read<uint32_t>();
    const auto offset = reader_.Read<uint64_t>();
    if (!type.has_value() || !offset.has_value()) return EndsInside(what);
    const absl::StatusOr<WeightType> weight_type = TensorType(*type);
    if (!weight_type.ok()) {
      return absl::Status(weight_type.status().code(),
                          absl::StrCat(what, ": ", weight_type.status().message()));
    }
    tensor.type = *weight_type;
    offsets->push_back(*offset);
    out_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Nullopt: the size does not fit 64 bits.
  static std::optional<uint64_t> TensorBytes(const GgufTensor& tensor) {
    const WeightTypeInfo& info = InfoOf(tensor.type);
    std::optional<uint64_t> elements = 1;
    for (const uint64_t dimension : tensor.shape) {
      elements = CheckedMultiply(*elements, dimension);
      if (!elements.has_value()) return std::nullopt;
    }
    return CheckedMultiply(*elements / info.block_size, info.block_bytes);
  }

  absl::Status PlaceTensor(uint64_t offset, GgufTensor* tensor) {
    const std::string what = absl::StrCat("tensor ", Printable(tensor->name));
    const WeightTypeInfo& info = InfoOf(tensor->type);
    if (tensor->shape.back() % info.block_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": rows of ", tensor->shape.back(),
                                                     " are no multiple of the block of ",
                                                     info.block_size, " that ", info.name, " has"));
    }
    const auto size = TensorBytes(*tensor);
    if (!size.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": its size does not fit 64 bits"));
    }
    if (offset % alignment_ != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": offset ", offset, " is no multiple of the alignment ", alignment_));
    }
    const auto begin = CheckedAdd(data_begin_, offset);
    const auto end = begin.has_value() ? CheckedAdd(*begin, *size) : std::nullopt;
    if (!end.has_value() || *end > file_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", *size, " bytes at offset ", offset,
                                                     " end past the end of the file"));
    }
    tensor->data = file_.subspan(*begin, *size);
    return absl::OkStatus();
  }

  absl::Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    // position() <= 2^63 and alignment_ <= 2^31: no overflow.
    data_begin_ = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    absl::flat_hash_map<absl::string_view, size_t> by_name;
    for (size_t i = 0; i < out_.tensors_.size(); ++i) {
      GgufTensor& tensor = out_.tensors_[i];
      if (!by_name.emplace(tensor.name, i).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("duplicate tensor name ", Printable(tensor.name)));
      }
      KVMESH_RETURN_IF_ERROR(PlaceTensor(offsets[i], &tensor));
    }
    return CheckOverlaps();
  }

  absl::Status CheckOverlaps() const {
    std::vector<const GgufTensor*> in_order;
    for (const GgufTensor& tensor : out_.tensors_) in_order.push_back(&tensor);
    std::sort(in_order.begin(), in_order.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return a->data.data() < b->data.data();
    });
    for (size_t i = 1; i < in_order.size(); ++i) {
      const GgufTensor& before = *in_order[i - 1];
      if (before.data.data() + before.data.size() > in_order[i]->data.data()) {
        return absl::InvalidArgumentError(absl::StrCat("tensors ", Printable(before.name), " and ",
                                                       Printable(in_order[i]->name),
                                                       " share bytes"));
      }
    }
    return absl::OkStatus();
  }

  absl::Span<const uint8_t> file_;
  ByteReader reader_;
  uint64_t tensor_count_ = 0;
  uint64_t pair_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  uint64_t data_begin_ = 0;
  GgufFile out_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const uint8_t> file) {
  return GgufParser(file).Run();
}

}  // namespace kvmesh::model

// JSON from outside: strict, of bounded depth and size, duplicate keys refused; and typed reading
// of an object whose keys must be present, of the right type and in range. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace kvmesh::model {

struct JsonLimits {
  uint32_t depth_max = 32;
  uint64_t values_max = 1 << 22;  // numbers, strings, lists, … all together
};

// InvalidArgument: not JSON or not UTF-8 (the byte is named), something after the value, too deep,
// too many values, a key twice in one object (named), a number that no double can hold.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const JsonLimits& limits = {});

// A view of one JSON object, which must outlive it. Every message names the key. A key whose value
// is null is treated as absent. InvalidArgument: absent though required, of another type, out of
// range.
class JsonObject {
 public:
  // `prefix` stands before each key in messages: "" or "rope_scaling.".
  explicit JsonObject(const nlohmann::json& object, absl::string_view prefix = "")
      : object_(&object), prefix_(prefix) {}

  // Null when absent or JSON null.
  const nlohmann::json* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  absl::StatusOr<uint64_t> Uint(absl::string_view key, uint64_t min, uint64_t max) const;
  absl::StatusOr<uint64_t> UintOr(absl::string_view key, uint64_t fallback, uint64_t min,
                                  uint64_t max) const;
  // A finite number above 0.
  absl::StatusOr<double> Positive(absl::string_view key) const;
  absl::StatusOr<double> PositiveOr(absl::string_view key, double fallback) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool fallback) const;
  absl::StatusOr<std::string> String(absl::string_view key) const;
  absl::StatusOr<std::string> StringOr(absl::string_view key, absl::string_view fallback) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;

  // "key rope_scaling.factor" for messages.
  std::string Name(absl::string_view key) const;

 private:
  const nlohmann::json* object_;
  std::string prefix_;
};

}  // namespace kvmesh::model

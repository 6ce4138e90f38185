#include "common/model/json.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

// Builds the value event by event, so that depth, size and duplicates are seen while reading
// (nlohmann's own builder lets a later duplicate win, and any depth pass). Its reader keeps no
// recursion.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(int64_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return Add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return Add(value) != nullptr; }
  bool string(std::string& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return Fail("binary values are not JSON"); }
  bool start_object(size_t) override { return Enter(Json::object()); }
  bool start_array(size_t) override { return Enter(Json::array()); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }

  bool key(std::string& key) override {
    if (open_.back()->contains(key)) {
      return Fail(absl::StrCat("duplicate key ", Printable(key)));
    }
    key_ = std::move(key);
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("not JSON (byte ", position, ")"));
  }

  const std::string& error() const { return error_; }
  Json& root() { return root_; }

 private:
  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }

  // Where the value was put; null: too many.
  Json* Add(Json value) {
    if (++values_ > limits_.values_max) {
      Fail(absl::StrCat("more than ", limits_.values_max, " values"));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool Enter(Json container) {
    if (open_.size() >= limits_.depth_max) {
      return Fail(absl::StrCat("nested more than ", limits_.depth_max, " deep"));
    }
    Json* added = Add(std::move(container));
    if (added != nullptr) open_.push_back(added);
    return added != nullptr;
  }

  bool Leave() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  uint64_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // from the root inwards; none moves while an inner one is open
  std::string key_;
  std::string error_;
};

absl::Status Wrong(absl::string_view name, const Json& value, absl::string_view wanted) {
  std::string shown = value.is_structured()
                          ? std::string(value.type_name())
                          : value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", Printable(shown), ", not ", wanted));
}

absl::StatusOr<uint64_t> AsUint(absl::string_view name, const Json& value, uint64_t min,
                                uint64_t max) {
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() >= min && value.get<uint64_t>() <= max;
  if (!fits) return Wrong(name, value, absl::StrCat("a whole number from ", min, " to ", max));
  return value.get<uint64_t>();
}

absl::StatusOr<double> AsPositive(absl::string_view name, const Json& value) {
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!std::isfinite(number) || number <= 0) return Wrong(name, value, "a number above 0");
  return number;
}

absl::StatusOr<std::string> AsString(absl::string_view name, const Json& value) {
  if (!value.is_string()) return Wrong(name, value, "a string");
  return value.get<std::string>();
}

absl::Status Missing(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(builder.error());
  }
  return std::move(builder.root());
}

const Json* JsonObject::Find(absl::string_view key) const {
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string JsonObject::Name(absl::string_view key) const {
  return absl::StrCat("key ", prefix_, key);
}

absl::StatusOr<uint64_t> JsonObject::Uint(absl::string_view key, uint64_t min, uint64_t max) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(Name(key));
  return AsUint(Name(key), *value, min, max);
}

absl::StatusOr<uint64_t> JsonObject::UintOr(absl::string_view key, uint64_t fallback, uint64_t min,
                                            uint64_t max) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  return AsUint(Name(key), *value, min, max);
}

absl::StatusOr<double> JsonObject::Positive(absl::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(Name(key));
  return AsPositive(Name(key), *value);
}

absl::StatusOr<double> JsonObject::PositiveOr(absl::string_view key, double fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  return AsPositive(Name(key), *value);
}

absl::StatusOr<bool> JsonObject::BoolOr(absl::string_view key, bool fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Wrong(Name(key), *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(absl::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(Name(key));
  return AsString(Name(key), *value);
}

absl::StatusOr<std::string> JsonObject::StringOr(absl::string_view key,
                                                 absl::string_view fallback) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  return AsString(Name(key), *value);
}

absl::StatusOr<std::vector<std::string>> JsonObject::Strings(absl::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Missing(Name(key));
  if (!value->is_array()) return Wrong(Name(key), *value, "a list of strings");
  std::vector<std::string> strings;
  for (const Json& element : *value) {
    KVMESH_ASSIGN_OR_RETURN(std::string text, AsString(Name(key), element));
    strings.push_back(std::move(text));
  }
  return strings;
}

}  // namespace kvmesh::model

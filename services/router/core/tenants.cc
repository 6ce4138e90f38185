#include "services/router/core/tenants.h"

#include <openssl/crypto.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "common/base/hex_id.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace kvmesh::router {
namespace {

using Json = nlohmann::json;

constexpr size_t kTenantsMax = 1024;
constexpr size_t kKeysMax = 4096;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kSaltBytesMin = 16;
constexpr size_t kSaltBytesMax = 64;

absl::Status Wrong(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, " ", what));
}

// A typing error must not lift a limit.
absl::Status OnlyFields(const Json& object, absl::string_view path,
                        const std::set<std::string>& allowed) {
  if (!object.is_object()) return Wrong(path, "is not a JSON object");
  for (const auto& [field, value] : object.items()) {
    if (allowed.count(field) == 0) return Wrong(path, absl::StrCat("has an unknown field ", field));
  }
  return absl::OkStatus();
}

template <typename Number>
absl::Status ReadLimit(const Json& limits, const char* field, absl::string_view path, Number* to) {
  const auto it = limits.find(field);
  if (it == limits.end()) return absl::OkStatus();
  if (!it->is_number_unsigned() || it->get<uint64_t>() > std::numeric_limits<Number>::max()) {
    return Wrong(absl::StrCat(path, ".", field), "is not a whole number that fits");
  }
  *to = it->get<Number>();
  return absl::OkStatus();
}

absl::StatusOr<TenantLimits> ReadLimits(const Json& limits, const std::string& path) {
  KVMESH_RETURN_IF_ERROR(
      OnlyFields(limits, path, {"generations", "tokens_per_minute", "kv_bytes", "store_bytes"}));
  TenantLimits result;
  KVMESH_RETURN_IF_ERROR(ReadLimit(limits, "generations", path, &result.generations));
  KVMESH_RETURN_IF_ERROR(ReadLimit(limits, "tokens_per_minute", path, &result.tokens_per_minute));
  KVMESH_RETURN_IF_ERROR(ReadLimit(limits, "kv_bytes", path, &result.kv_bytes));
  KVMESH_RETURN_IF_ERROR(ReadLimit(limits, "store_bytes", path, &result.store_bytes));
  return result;
}

// Names appear in logs and as labels of metrics.
bool IsName(const std::string& name) {
  if (name.empty() || name.size() > kNameBytesMax) return false;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    if (!plain) return false;
  }
  return true;
}

absl::StatusOr<std::string> ReadString(const Json& object, const char* field,
                                       absl::string_view path) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) {
    return Wrong(absl::StrCat(path, ".", field), "is missing, or no string");
  }
  return it->get<std::string>();
}

absl::StatusOr<Tenant> ReadTenant(const Json& json, const std::string& path) {
  KVMESH_RETURN_IF_ERROR(
      OnlyFields(json, path, {"name", "salt", "operator", "limits", "key_sha256"}));
  Tenant tenant;
  KVMESH_ASSIGN_OR_RETURN(tenant.name, ReadString(json, "name", path));
  if (!IsName(tenant.name)) {
    return Wrong(path + ".name", absl::StrCat("is not 1 to ", kNameBytesMax,
                                              " letters, digits, dots, dashes and underscores"));
  }
  KVMESH_ASSIGN_OR_RETURN(const std::string salt, ReadString(json, "salt", path));
  absl::StatusOr<std::string> bytes = HexDecode(salt);
  if (!bytes.ok() || bytes->size() < kSaltBytesMin || bytes->size() > kSaltBytesMax) {
    return Wrong(path + ".salt", absl::StrCat("is not ", 2 * kSaltBytesMin, " to ",
                                              2 * kSaltBytesMax, " hex digits"));
  }
  tenant.salt = *std::move(bytes);
  if (const auto it = json.find("operator"); it != json.end()) {
    if (!it->is_boolean()) return Wrong(path + ".operator", "is neither true nor false");
    tenant.is_operator = it->get<bool>();
  }
  if (const auto it = json.find("limits"); it != json.end()) {
    KVMESH_ASSIGN_OR_RETURN(tenant.limits, ReadLimits(*it, path + ".limits"));
  }
  return tenant;
}

}  // namespace

const TenantPtr& NoTenant() {
  static const auto* none = new TenantPtr(std::make_shared<const Tenant>());
  return *none;
}

absl::StatusOr<TenantTable> TenantTable::Parse(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) return absl::InvalidArgumentError("not JSON");
  KVMESH_RETURN_IF_ERROR(OnlyFields(json, "the file", {"tenants"}));
  const auto tenants = json.find("tenants");
  if (tenants == json.end() || !tenants->is_array()) return Wrong("tenants", "is no array");
  if (tenants->size() > kTenantsMax) {
    return Wrong("tenants", absl::StrCat("has ", tenants->size(), " entries; at most ", kTenantsMax,
                                         " are allowed"));
  }
  TenantTable table;
  std::set<std::string> names;
  std::map<std::string, std::string> names_by_salt;
  std::set<Sha256Digest> hashes;
  for (size_t i = 0; i < tenants->size(); ++i) {
    const std::string path = absl::StrCat("tenants[", i, "]");
    KVMESH_ASSIGN_OR_RETURN(Tenant tenant, ReadTenant((*tenants)[i], path));
    if (!names.insert(tenant.name).second) {
      return Wrong(path + ".name", absl::StrCat("is \"", tenant.name, "\", as of one before"));
    }
    const auto [of, fresh] = names_by_salt.emplace(tenant.salt, tenant.name);
    if (!fresh) {
      return Wrong(path + ".salt", absl::StrCat("is that of ", of->second,
                                                ": the two would share their stored state"));
    }
    const auto shared = std::make_shared<const Tenant>(std::move(tenant));
    const auto keys = (*tenants)[i].find("key_sha256");
    if (keys == (*tenants)[i].end() || !keys->is_array()) {
      return Wrong(path + ".key_sha256", "is no array");
    }
    for (size_t k = 0; k < keys->size(); ++k) {
      const std::string key_path = absl::StrCat(path, ".key_sha256[", k, "]");
      if (!(*keys)[k].is_string()) return Wrong(key_path, "is no string");
      KVMESH_ASSIGN_OR_RETURN(const Sha256Digest hash,
                              IdFromHex<Sha256Digest>((*keys)[k].get<std::string>(), key_path));
      if (!hashes.insert(hash).second) return Wrong(key_path, "is there twice");
      table.keys_.push_back({hash, shared});
    }
    if (table.keys_.size() > kKeysMax) {
      return Wrong("key_sha256", absl::StrCat("has more than ", kKeysMax, " entries in all"));
    }
  }
  table.tenant_count_ = tenants->size();
  return table;
}

TenantPtr TenantTable::Find(absl::string_view token) const {
  const Sha256Digest hash = Sha256Of(token);
  TenantPtr found;
  // Every key is looked at, and all of it.
  for (const Key& key : keys_) {
    if (CRYPTO_memcmp(hash.bytes().data(), key.token_sha256.bytes().data(), Sha256Digest::kSize) ==
        0) {
      found = key.tenant;
    }
  }
  return found;
}

}  // namespace kvmesh::router

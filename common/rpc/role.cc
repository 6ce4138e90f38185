#include "common/rpc/role.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvmesh::rpc {
namespace {

constexpr absl::string_view kUriPrefix = "spiffe://kvmesh/";

constexpr std::array<std::pair<Role, absl::string_view>, 7> kNames = {
    {{Role::kAnonymous, "anonymous"},
     {Role::kRouter, "router"},
     {Role::kShard, "shard"},
     {Role::kMeta, "meta"},
     {Role::kBlob, "blob"},
     {Role::kClient, "client"},
     {Role::kOperator, "operator"}}};

}  // namespace

absl::string_view RoleName(Role role) {
  return kNames[static_cast<size_t>(role)].second;
}

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const auto& [role, its_name] : kNames) {
    if (its_name == name) return role;
  }
  return std::nullopt;
}

std::string RoleUri(Role role) {
  return absl::StrCat(kUriPrefix, RoleName(role));
}

std::string RoleHost(Role role) {
  return absl::StrCat(RoleName(role), ".kvmesh");
}

std::optional<Role> RoleOfUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kUriPrefix)) return std::nullopt;
  const std::optional<Role> role = RoleNamed(uri);
  return role == Role::kAnonymous ? std::nullopt : role;
}

std::string Roles::ToString() const {
  std::string text;
  for (const auto& [role, name] : kNames) {
    if (Has(role)) absl::StrAppend(&text, text.empty() ? "" : ", ", name);
  }
  return text.empty() ? "none" : text;
}

absl::StatusOr<Roles> ParseRoles(absl::string_view list) {
  Roles roles;
  for (absl::string_view name : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    name = absl::StripAsciiWhitespace(name);
    const std::optional<Role> role = RoleNamed(name);
    if (!role.has_value()) {
      Roles known;
      for (const auto& [each, its_name] : kNames) known.Add(each);
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is none of ", known.ToString()));
    }
    roles.Add(*role);
  }
  if (roles.empty()) return absl::InvalidArgumentError("the list names no role");
  return roles;
}

Roles DefaultCallers(Role service) {
  switch (service) {
    case Role::kRouter:
      return {Role::kClient, Role::kOperator};
    case Role::kShard:
    case Role::kBlob:
      return {Role::kRouter, Role::kShard, Role::kOperator};
    case Role::kMeta:
      return {Role::kRouter, Role::kShard, Role::kBlob, Role::kOperator};
    default:
      return {};
  }
}

}  // namespace kvmesh::rpc

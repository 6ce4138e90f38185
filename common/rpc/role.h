// What a peer is in a mesh. A certificate tells it as a URI among its subject's alternative names:
// spiffe://kvmesh/router. Hops are dialled by address, so the role is checked, not a host's name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvmesh::rpc {

enum class Role : uint8_t { kAnonymous, kRouter, kShard, kMeta, kBlob, kClient, kOperator };

// "anonymous" (a peer without a certificate), "router", "shard", "meta", "blob", "client",
// "operator".
absl::string_view RoleName(Role role);
// None of these: nothing.
std::optional<Role> RoleNamed(absl::string_view name);

// The URI by which a certificate says that its holder is a `role`.
std::string RoleUri(Role role);
// The host name that a role's certificate bears too, for clients that must check one:
// "router.kvmesh".
std::string RoleHost(Role role);
// Nothing for a URI that names no role; "anonymous" is none that a certificate could name.
std::optional<Role> RoleOfUri(absl::string_view uri);

// A set of roles. Copyable, a plain value.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) Add(role);
  }
  constexpr void Add(Role role) { bits_ |= Bit(role); }
  constexpr bool Has(Role role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool Meets(Roles other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  std::string ToString() const;  // "router, shard"; "none"

 private:
  static constexpr uint32_t Bit(Role role) { return uint32_t{1} << static_cast<uint32_t>(role); }
  uint32_t bits_ = 0;
};

// Names separated by commas. InvalidArgument: an unknown name, which is shown with those there are;
// or none at all.
absl::StatusOr<Roles> ParseRoles(absl::string_view list);

// Who may call a service of this role, unless --tls-allow-roles says otherwise.
Roles DefaultCallers(Role service);

}  // namespace kvmesh::rpc

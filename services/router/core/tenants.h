// Who may use a router, by bearer token, and how much of it: the content of --clients-file. Pure
// and immutable; thread-safe.
//
// A token is known by its SHA-256 alone: who reads the file cannot become a client. Tokens must be
// random (32 bytes, as `kvmesh client-key` makes them); a hash protects no word that can be
// guessed. A tenant's salt is part of the namespace of all state that is stored for it, so that no
// prompt of another tenant ever finds it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace kvmesh::reason {
inline constexpr absl::string_view kTenantLimit = "TENANT_LIMIT";  // metadata: limit
}  // namespace kvmesh::reason

namespace kvmesh::router {

// 0: no limit.
struct TenantLimits {
  uint32_t generations = 0;        // at the same time, waiting ones included
  uint64_t tokens_per_minute = 0;  // of prompts and answers
  uint64_t kv_bytes = 0;           // of session state that its generations may come to hold
  uint64_t store_bytes = 0;        // in all stores together, of one model; the arbiter keeps it
};

struct Tenant {
  std::string name;  // empty: of calls where there are no tenants
  std::string salt;  // bytes; empty for that one alone
  bool is_operator = false;
  TenantLimits limits;
};
using TenantPtr = std::shared_ptr<const Tenant>;  // shared: a new table comes while calls run

// The one of calls where there are no tenants.
const TenantPtr& NoTenant();

class TenantTable {
 public:
  // The JSON of docs/security.md. InvalidArgument: the path, what it is, and what it must be.
  static absl::StatusOr<TenantTable> Parse(absl::string_view json);

  // Null: nobody's token. Takes the same time whichever key it is, and whether it is one.
  TenantPtr Find(absl::string_view token) const;

  size_t tenant_count() const { return tenant_count_; }
  size_t key_count() const { return keys_.size(); }

 private:
  struct Key {
    Sha256Digest token_sha256;
    TenantPtr tenant;
  };
  std::vector<Key> keys_;
  size_t tenant_count_ = 0;
};

}  // namespace kvmesh::router

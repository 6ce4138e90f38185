// What each tenant has in use, against its limits. Pure: time is an argument. Not thread-safe.
//
// A generation takes its whole need when it enters, prompt and max_tokens, and gives back at its
// end what it did not use: so a limit is never passed, however many run side by side. Tokens come
// back with time: a limit of n a minute is a bucket of n, filled at n/60 a second.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "services/router/core/tenants.h"

namespace kvmesh::router {

class TenantLedger {
 public:
  struct Need {
    uint64_t tokens = 0;    // prompt and max_tokens
    uint64_t kv_bytes = 0;  // of session state, over all hops
  };
  // ResourceExhausted TENANT_LIMIT, with the limit, its value and the tenant's own use: with a
  // delay after which a repeat may succeed; without one when it never can. Other tenants' use is
  // not told.
  absl::Status Enter(const TenantPtr& tenant, const SessionId& session, const Need& need,
                     MonoTime now);
  // It ran `tokens` of those it took (prompt and answer). Unknown sessions are ignored.
  void Leave(const SessionId& session, uint64_t tokens, MonoTime now);

  struct Use {
    uint32_t generations = 0;
    uint64_t kv_bytes = 0;
    double tokens_left = 0;  // of the bucket; only where there is a limit
  };
  Use UseOf(const std::string& tenant_name) const;

 private:
  struct Account {
    Use use;
    MonoTime filled_at;
    uint64_t bucket = 0;  // its size; 0: none yet
  };
  struct Stay {
    TenantPtr tenant;
    Need need;
  };
  static void Fill(Account& account, uint64_t per_minute, MonoTime now);
  void DropIdleAccounts(MonoTime now);

  std::map<std::string, Account> accounts_;  // by the tenant's name
  std::map<SessionId, Stay> stays_;
};

}  // namespace kvmesh::router

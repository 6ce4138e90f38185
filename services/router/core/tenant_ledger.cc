#include "services/router/core/tenant_ledger.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::router {
namespace {

constexpr absl::Duration kRetryDelay = absl::Seconds(1);
constexpr size_t kAccountsMax = 4096;  // tables change; what nobody uses is forgotten

absl::Status Refusal(const Tenant& tenant, absl::string_view limit, uint64_t max, uint64_t used,
                     uint64_t wanted) {
  return WithErrorInfo(
      absl::ResourceExhaustedError(absl::StrCat(limit, " of tenant ", tenant.name, " is ", max,
                                                "; ", used, " in use, ", wanted, " more wanted")),
      {.reason = std::string(reason::kTenantLimit), .metadata = {{"limit", std::string(limit)}}});
}

// Until `missing` tokens have come back.
absl::Duration TimeToFill(double missing, uint64_t per_minute) {
  return std::max(absl::Minutes(missing / static_cast<double>(per_minute)), kRetryDelay);
}

}  // namespace

void TenantLedger::Fill(Account& account, uint64_t per_minute, MonoTime now) {
  const auto size = static_cast<double>(per_minute);
  if (account.bucket != per_minute) {  // the first time, or the limit has changed
    account.use.tokens_left += size - static_cast<double>(account.bucket);
    account.bucket = per_minute;
    account.filled_at = now;
  }
  const double minutes = absl::ToDoubleMinutes(now - account.filled_at);
  account.use.tokens_left = std::min(account.use.tokens_left + minutes * size, size);
  account.filled_at = now;
}

absl::Status TenantLedger::Enter(const TenantPtr& tenant, const SessionId& session,
                                 const Need& need, MonoTime now) {
  const TenantLimits& limits = tenant->limits;
  if (accounts_.size() >= kAccountsMax) DropIdleAccounts(now);
  Account& account = accounts_[tenant->name];
  if (limits.generations > 0 && account.use.generations >= limits.generations) {
    return WithRetryDelay(
        Refusal(*tenant, "generations", limits.generations, account.use.generations, 1),
        kRetryDelay);
  }
  if (limits.kv_bytes > 0 && account.use.kv_bytes + need.kv_bytes > limits.kv_bytes) {
    absl::Status refused =
        Refusal(*tenant, "kv_bytes", limits.kv_bytes, account.use.kv_bytes, need.kv_bytes);
    return need.kv_bytes > limits.kv_bytes ? refused : WithRetryDelay(refused, kRetryDelay);
  }
  if (limits.tokens_per_minute > 0) {
    Fill(account, limits.tokens_per_minute, now);
    const double missing = static_cast<double>(need.tokens) - account.use.tokens_left;
    if (missing > 0) {
      const double used = static_cast<double>(limits.tokens_per_minute) - account.use.tokens_left;
      absl::Status refused = Refusal(*tenant, "tokens_per_minute", limits.tokens_per_minute,
                                     static_cast<uint64_t>(used), need.tokens);
      return need.tokens > limits.tokens_per_minute
                 ? refused
                 : WithRetryDelay(refused, TimeToFill(missing, limits.tokens_per_minute));
    }
    account.use.tokens_left -= static_cast<double>(need.tokens);
  }
  ++account.use.generations;
  account.use.kv_bytes += need.kv_bytes;
  stays_[session] = {tenant, need};
  return absl::OkStatus();
}

void TenantLedger::Leave(const SessionId& session, uint64_t tokens, MonoTime now) {
  const auto it = stays_.find(session);
  if (it == stays_.end()) return;
  const Stay& stay = it->second;
  Account& account = accounts_[stay.tenant->name];
  --account.use.generations;
  account.use.kv_bytes -= stay.need.kv_bytes;
  if (account.bucket > 0 && stay.tenant->limits.tokens_per_minute > 0) {
    account.use.tokens_left +=
        static_cast<double>(stay.need.tokens - std::min(tokens, stay.need.tokens));
    Fill(account, account.bucket, now);
  }
  stays_.erase(it);
}

void TenantLedger::DropIdleAccounts(MonoTime now) {
  for (auto it = accounts_.begin(); it != accounts_.end();) {
    const bool idle =
        it->second.use.generations == 0 && now - it->second.filled_at >= absl::Minutes(1);
    it = idle ? accounts_.erase(it) : std::next(it);
  }
}

TenantLedger::Use TenantLedger::UseOf(const std::string& tenant_name) const {
  const auto it = accounts_.find(tenant_name);
  return it == accounts_.end() ? Use{} : it->second.use;
}

}  // namespace kvmesh::router

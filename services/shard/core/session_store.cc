#include "services/shard/core/session_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"

namespace kvmesh::shard {
namespace {

constexpr absl::Duration kDroppedMemory = absl::Seconds(60);
constexpr size_t kDroppedMax = 4096;
constexpr size_t kGoneMax = 4096;

MissCause MissCauseOf(EvictCause cause) {
  switch (cause) {
    case EvictCause::kLru:
      return MissCause::kEvictedLru;
    case EvictCause::kBytes:
      return MissCause::kEvictedBytes;
    case EvictCause::kTtl:
      return MissCause::kEvictedTtl;
    case EvictCause::kOrphanTtl:
      return MissCause::kEvictedOrphan;
  }
  return MissCause::kUnknownSession;
}

absl::Status Superseded(const SessionId& id, absl::string_view why) {
  return WithErrorInfo(absl::AbortedError(absl::StrCat("session ", id.ToHex(), ": ", why)),
                       {.reason = std::string(reason::kSuperseded)});
}

}  // namespace

absl::string_view EvictCauseName(EvictCause cause) {
  switch (cause) {
    case EvictCause::kLru:
      return "lru";
    case EvictCause::kBytes:
      return "bytes";
    case EvictCause::kTtl:
      return "ttl";
    case EvictCause::kOrphanTtl:
      return "orphan_ttl";
  }
  return "unknown";
}

HeldFacts SessionEntry::Facts(bool tail) const {
  return {.newest_epoch = newest_epoch,
          .newest_attempt = newest_attempt,
          .has_state = has_state,
          .absent_cause = absent_cause,
          .state_epoch = state_epoch,
          .held = held,
          .digest = digest,
          .digest_before_last = digest_before_last,
          .last_token = last_token,
          .last_step = last_step,
          // A tail that has only the row, as after a restore, samples from it again.
          .can_replay = (tail && last_answer.has_value()) || !last_row.empty(),
          // Who does not sample needs no row.
          .can_full_hit = !tail || !last_row.empty()};
}

void SessionEntry::Extend(absl::Span<const uint32_t> more) {
  if (more.empty()) return;
  ids.insert(ids.end(), more.begin(), more.end());
  for (const uint32_t id : more.first(more.size() - 1)) tokens.UpdateU32(id);
  digest_before_last = PrefixDigest(tokens.Digest());
  last_token = more.back();
  tokens.UpdateU32(last_token);
  digest = PrefixDigest(tokens.Digest());
  held += more.size();
}

uint64_t SessionCacheStore::BytesFor(uint64_t tokens) const {
  const uint64_t block = std::max<uint32_t>(limits_.block_tokens, 1);
  const uint64_t whole_blocks = (tokens + block - 1) / block * block;
  return whole_blocks * limits_.bytes_per_token + limits_.bytes_fixed;
}

absl::Status SessionCacheStore::Open(const SessionId& id, SessionEpoch epoch, StreamAttempt attempt,
                                     uint64_t reserve_tokens, const std::string& tenant,
                                     MonoTime now, bool* admitted) {
  Expire(now);
  if (WasDropped(id, epoch, now)) return Superseded(id, "this epoch was dropped");
  const uint64_t bytes = BytesFor(reserve_tokens);
  auto it = entries_.find(id);
  *admitted = it == entries_.end();
  if (*admitted) {
    KVMESH_RETURN_IF_ERROR(Admit(bytes));
    it = entries_.try_emplace(id).first;
    it->second.serial = next_serial_++;
    if (auto gone = gone_.find(id); gone != gone_.end()) it->second.absent_cause = gone->second;
  } else if (epoch < it->second.newest_epoch || attempt <= it->second.newest_attempt) {
    return Superseded(id, "a newer epoch or attempt is known");
  }
  SessionEntry& entry = it->second;
  entry.phase = SessionPhase::kLive;
  entry.newest_epoch = epoch;
  entry.newest_attempt = attempt;
  entry.reserved = std::max(entry.reserved, bytes);
  entry.tenant = tenant;
  entry.last_access = now;
  return absl::OkStatus();
}

absl::Duration SessionCacheStore::NextRetryDelay() {
  const uint64_t round = refused_in_row_++ / std::max<uint32_t>(limits_.sessions_max, 1);
  const auto most = static_cast<uint64_t>(limits_.retry_delay_max / limits_.retry_delay);
  return limits_.retry_delay * static_cast<int64_t>(std::min(round + 1, most));
}

absl::Status SessionCacheStore::Admit(uint64_t bytes) {
  if (bytes > limits_.bytes_max) {
    ++counters_.too_large;
    return WithErrorInfo(absl::ResourceExhaustedError(absl::StrCat(
                             "the session needs ", bytes,
                             " bytes of cache; the limit of this shard is ", limits_.bytes_max)),
                         {.reason = std::string(reason::kTooLarge)});
  }
  if (live() >= limits_.sessions_max || bytes_live() + bytes > limits_.bytes_max) {
    ++counters_.no_room;
    return WithRetryDelay(
        WithErrorInfo(
            absl::ResourceExhaustedError(absl::StrCat(
                "no room: ", live(), " live sessions of at most ", limits_.sessions_max, ", ",
                bytes_live(), " bytes of at most ", limits_.bytes_max, "; ", bytes, " wanted")),
            {.reason = std::string(reason::kNoRoom)}),
        NextRetryDelay());
  }
  refused_in_row_ = 0;
  while (entries_.size() >= limits_.sessions_max) Evict(NextVictim(), EvictCause::kLru);
  while (TotalCharge() + bytes > limits_.bytes_max) Evict(NextVictim(), EvictCause::kBytes);
  return absl::OkStatus();
}

SessionEntry* SessionCacheStore::Touch(const SessionId& id, MonoTime now) {
  Expire(now);
  SessionEntry* entry = Find(id);
  if (entry != nullptr) entry->last_access = now;
  return entry;
}

SessionEntry* SessionCacheStore::Find(const SessionId& id) {
  auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

std::vector<SessionEntry*> SessionCacheStore::Resting() {
  std::vector<SessionEntry*> resting;
  for (auto& [id, entry] : entries_) {
    if (entry.phase != SessionPhase::kLive) resting.push_back(&entry);
  }
  return resting;
}

void SessionCacheStore::Release(const SessionId& id, SessionPhase phase, MonoTime now) {
  SessionEntry* entry = Find(id);
  if (entry == nullptr) return;
  entry->phase = phase;
  entry->reserved = 0;
  entry->last_access = now;
}

void SessionCacheStore::ForgetState(SessionEntry* entry, MissCause cause) {
  entry->has_state = false;
  entry->absent_cause = cause;
  entry->state.clear();
  entry->bytes = 0;
  entry->held = 0;
  entry->ids.clear();
  entry->tokens = Sha256();
  entry->last_step = 0;
  entry->last_row.clear();
  entry->prefill_end = 0;
  entry->prefill_row.clear();
  entry->last_answer.reset();
}

void SessionCacheStore::SetBytes(SessionEntry* entry, uint64_t bytes) {
  entry->bytes = bytes;
}

void SessionCacheStore::Erase(const SessionId& id) {
  entries_.erase(id);
}

void SessionCacheStore::RememberDropped(const SessionId& id, SessionEpoch epoch, MonoTime now) {
  const MonoTime until = now + kDroppedMemory;
  Dropped& dropped = dropped_[id];
  dropped = {.epoch = std::max(dropped.epoch, epoch), .until = until};
  dropped_order_.emplace_back(until, id);
  while (dropped_order_.size() > kDroppedMax || dropped_order_.front().first <= now) {
    auto it = dropped_.find(dropped_order_.front().second);
    // A pair that was dropped again since stands further back in the queue too.
    if (it != dropped_.end() && it->second.until == dropped_order_.front().first)
      dropped_.erase(it);
    dropped_order_.pop_front();
  }
}

bool SessionCacheStore::WasDropped(const SessionId& id, SessionEpoch epoch, MonoTime now) const {
  auto it = dropped_.find(id);
  return it != dropped_.end() && now < it->second.until && epoch <= it->second.epoch;
}

void SessionCacheStore::Expire(MonoTime now) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto here = it++;
    const SessionEntry& entry = here->second;
    const absl::Duration unused = now - entry.last_access;
    if (entry.phase == SessionPhase::kIdle && unused >= limits_.ttl) {
      Evict(here, EvictCause::kTtl);
    } else if (entry.phase == SessionPhase::kOrphaned &&
               unused >= std::min(limits_.orphan_ttl, limits_.ttl)) {
      Evict(here, EvictCause::kOrphanTtl);
    }
  }
  while (TotalCharge() > limits_.bytes_max) {
    const auto victim = NextVictim();
    if (victim == entries_.end()) break;
    Evict(victim, EvictCause::kBytes);
  }
}

uint64_t SessionCacheStore::Charge(const SessionEntry& entry) {
  return entry.phase == SessionPhase::kLive ? std::max(entry.reserved, entry.bytes) : entry.bytes;
}

uint64_t SessionCacheStore::TotalCharge() const {
  uint64_t total = 0;
  for (const auto& [id, entry] : entries_) total += Charge(entry);
  return total;
}

std::map<SessionId, SessionEntry>::iterator SessionCacheStore::NextVictim() {
  auto victim = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const SessionEntry& entry = it->second;
    if (entry.phase == SessionPhase::kLive) continue;
    const auto rank = [](const SessionEntry& e) {
      return std::make_pair(e.phase != SessionPhase::kOrphaned, e.last_access);
    };
    if (victim == entries_.end() || rank(entry) < rank(victim->second)) victim = it;
  }
  return victim;
}

void SessionCacheStore::Evict(std::map<SessionId, SessionEntry>::iterator victim,
                              EvictCause cause) {
  const SessionEntry& entry = victim->second;
  if (entry.has_state) ++counters_.evictions[static_cast<size_t>(cause)];
  const MissCause remembered = entry.has_state ? MissCauseOf(cause) : entry.absent_cause;
  if (gone_.insert_or_assign(victim->first, remembered).second) {
    gone_order_.push_back(victim->first);
  }
  if (gone_order_.size() > kGoneMax) {
    gone_.erase(gone_order_.front());
    gone_order_.pop_front();
  }
  if (limits_.keep_evicted && !entry.state.empty()) evicted_.push_back(std::move(victim->second));
  entries_.erase(victim);
}

std::optional<SessionView> SessionCacheStore::View(const SessionId& id, MonoTime now) const {
  auto it = entries_.find(id);
  if (it == entries_.end()) return std::nullopt;
  const SessionEntry& entry = it->second;
  return SessionView{.id = id,
                     .epoch = entry.newest_epoch,
                     .attempt = entry.newest_attempt,
                     .phase = entry.phase,
                     .held = entry.held,
                     .last_step = entry.last_step,
                     .bytes = entry.bytes,
                     .reserved = entry.reserved,
                     .idle = now - entry.last_access,
                     .tenant = entry.tenant};
}

std::vector<SessionView> SessionCacheStore::List(const std::optional<SessionId>& after,
                                                 size_t count, MonoTime now) const {
  std::vector<SessionView> views;
  auto it = after.has_value() ? entries_.upper_bound(*after) : entries_.begin();
  for (; it != entries_.end() && views.size() < count; ++it) {
    views.push_back(*View(it->first, now));
  }
  return views;
}

size_t SessionCacheStore::count(SessionPhase phase) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [phase](const auto& pair) { return pair.second.phase == phase; }));
}

uint64_t SessionCacheStore::bytes_used() const {
  uint64_t total = snapshot_bytes_;
  for (const auto& [id, entry] : entries_) total += entry.bytes;
  return total;
}

uint64_t SessionCacheStore::bytes_live() const {
  uint64_t total = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.phase == SessionPhase::kLive) total += Charge(entry);
  }
  return total;
}

}  // namespace kvmesh::shard

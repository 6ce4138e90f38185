// Holds, for every session, the cache state of the shard's own layers: session id -> entry, bounded
// by count, bytes and time. It never looks inside the state.
//
// Not thread-safe. Time is an argument.
// Invariants: a live entry is never evicted; at most `sessions_max` entries exist; bytes_used()
// equals the sum over entries and snapshots; whatever is remembered of sessions that are gone is
// bounded.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/forward/frames.h"
#include "services/shard/core/frame_rules.h"
#include "services/shard/core/layer_state.h"

namespace kvmesh::shard {

struct StoreLimits {
  uint32_t sessions_max = 8;
  uint64_t bytes_max = uint64_t{1} << 30;
  absl::Duration ttl = absl::Seconds(600);
  absl::Duration orphan_ttl = absl::Seconds(30);
  // Told with NO_ROOM: so long per round of sessions_max refusals since the last admission, so that
  // many callers that wait do not all come back at once.
  absl::Duration retry_delay = absl::Milliseconds(250);
  absl::Duration retry_delay_max = absl::Seconds(5);
  // Size of a session's state: block_tokens-wise growth, plus what does not grow.
  uint32_t block_tokens = 1;
  uint64_t bytes_per_token = 0;
  uint64_t bytes_fixed = 0;
  // Evicted entries that hold state are kept for TakeEvicted().
  bool keep_evicted = false;
};

enum class SessionPhase { kLive, kIdle, kOrphaned };

enum class EvictCause { kLru, kBytes, kTtl, kOrphanTtl };
inline constexpr int kEvictCauseCount = 4;
absl::string_view EvictCauseName(EvictCause cause);  // "lru", "bytes", "ttl", "orphan_ttl"

struct SessionEntry {
  uint64_t serial = 0;  // tells this entry from a later one of the same session
  SessionPhase phase = SessionPhase::kLive;
  SessionEpoch newest_epoch{0};
  StreamAttempt newest_attempt{0};
  std::string tenant;
  MonoTime last_access;
  uint64_t bytes = 0;     // of the state
  uint64_t reserved = 0;  // admitted at Open; counts while live

  bool has_state = false;  // also while a job has it on loan; the fields below count only then
  MissCause absent_cause = MissCause::kUnknownSession;
  SessionState state;
  SessionEpoch state_epoch{0};
  forward::CacheNamespace cache_namespace;
  uint64_t held = 0;
  std::vector<uint32_t> ids;  // [held]
  Sha256 tokens;              // running, over all held ids
  uint64_t digest = 0;
  uint64_t digest_before_last = 0;
  uint32_t last_token = 0;
  uint32_t last_step = 0;
  std::vector<float> last_row;  // [hidden_size] of the last token
  // Tokens held when the last prefill had ended, and the row of the last of them: a save at a
  // prompt's end has its row however many steps have run since.
  uint64_t prefill_end = 0;
  std::vector<float> prefill_row;              // [hidden_size]
  std::optional<forward::Output> last_answer;  // at the tail, of the last step

  HeldFacts Facts(bool tail) const;
  // Takes in ids whose state is now held behind the others.
  void Extend(absl::Span<const uint32_t> more);
};

// For ListSessions and GetSession.
struct SessionView {
  SessionId id;
  SessionEpoch epoch{0};
  StreamAttempt attempt{0};
  SessionPhase phase = SessionPhase::kLive;
  uint64_t held = 0;
  uint32_t last_step = 0;
  uint64_t bytes = 0;
  uint64_t reserved = 0;
  absl::Duration idle;
  std::string tenant;
};

struct StoreCounters {
  std::array<uint64_t, kEvictCauseCount> evictions{};
  uint64_t no_room = 0;
  uint64_t too_large = 0;
};

class SessionCacheStore {
 public:
  explicit SessionCacheStore(const StoreLimits& limits) : limits_(limits) {}

  // Makes the session live for a stream of this epoch and attempt. A session already held needs no
  // new admission; a new one gets an entry without state, for which idle and orphaned ones are
  // evicted. `*admitted` tells which it was. Aborted SUPERSEDED: a newer epoch or attempt is known,
  // or this epoch was dropped. ResourceExhausted NO_ROOM (with retry delay): live sessions fill
  // count or bytes. ResourceExhausted TOO_LARGE (without): it would not fit an empty shard.
  absl::Status Open(const SessionId& id, SessionEpoch epoch, StreamAttempt attempt,
                    uint64_t reserve_tokens, const std::string& tenant, MonoTime now,
                    bool* admitted);

  // Null when not held (expired ones are gone first). Counts as an access.
  SessionEntry* Touch(const SessionId& id, MonoTime now);
  // Null when not held; no access.
  SessionEntry* Find(const SessionId& id);

  // Its stream ended: idle (closed with KEEP) or orphaned (lost).
  void Release(const SessionId& id, SessionPhase phase, MonoTime now);
  // Frees the state but keeps the entry: the next frame misses with `cause`.
  void ForgetState(SessionEntry* entry, MissCause cause);
  void SetBytes(SessionEntry* entry, uint64_t bytes);

  // What jobs that have the state on loan bring back is no longer this entry's.
  void Disown(SessionEntry* entry) { entry->serial = next_serial_++; }
  // Entries that no stream uses.
  std::vector<SessionEntry*> Resting();
  // Evicted since the last call, with their state; the caller drops or saves it.
  std::vector<SessionEntry> TakeEvicted() { return std::exchange(evicted_, {}); }
  // Bytes that belong to no entry any more but still lie in memory.
  void SetSnapshotBytes(uint64_t bytes) { snapshot_bytes_ = bytes; }
  // Whether entries, as they count, and snapshots together keep to the limit.
  bool WithinBytes(uint64_t more = 0) const {
    return TotalCharge() + snapshot_bytes_ + more <= limits_.bytes_max;
  }

  // Frees the entry without remembering it as dropped. No-op when not held.
  void Erase(const SessionId& id);
  // Remembers for 60 s that epochs up to `epoch` are over.
  void RememberDropped(const SessionId& id, SessionEpoch epoch, MonoTime now);
  bool WasDropped(const SessionId& id, SessionEpoch epoch, MonoTime now) const;

  // TTLs, then LRU by bytes. Called on every access and once a second.
  void Expire(MonoTime now);

  std::optional<SessionView> View(const SessionId& id, MonoTime now) const;
  // Up to `count` sessions with ids above `after`, in order of ids.
  std::vector<SessionView> List(const std::optional<SessionId>& after, size_t count,
                                MonoTime now) const;

  size_t size() const { return entries_.size(); }
  size_t count(SessionPhase phase) const;
  size_t live() const { return count(SessionPhase::kLive); }
  uint64_t bytes_used() const;  // snapshots included
  // Bytes that live sessions have reserved or hold.
  uint64_t bytes_live() const;
  uint64_t BytesFor(uint64_t tokens) const;
  const StoreLimits& limits() const { return limits_; }
  const StoreCounters& counters() const { return counters_; }
  // Remembered pairs and causes; bounded.
  size_t remembered() const { return dropped_.size() + gone_.size(); }

 private:
  struct Dropped {
    SessionEpoch epoch{0};
    MonoTime until;
  };

  // Bytes an entry counts with: what it reserved while live, what it holds otherwise.
  static uint64_t Charge(const SessionEntry& entry);
  uint64_t TotalCharge() const;
  // The next to go: orphans before idle ones, least recently used first. End when all are live.
  std::map<SessionId, SessionEntry>::iterator NextVictim();
  void Evict(std::map<SessionId, SessionEntry>::iterator victim, EvictCause cause);
  absl::Status Admit(uint64_t bytes);
  absl::Duration NextRetryDelay();

  const StoreLimits limits_;
  std::map<SessionId, SessionEntry> entries_;  // ordered, for paging; at most sessions_max
  uint64_t next_serial_ = 1;
  std::vector<SessionEntry> evicted_;
  uint64_t snapshot_bytes_ = 0;
  StoreCounters counters_;
  uint64_t refused_in_row_ = 0;  // for want of room, since the last admission
  absl::flat_hash_map<SessionId, Dropped> dropped_;
  std::deque<std::pair<MonoTime, SessionId>> dropped_order_;
  absl::flat_hash_map<SessionId, MissCause>
      gone_;  // why sessions without an entry lost their state
  std::deque<SessionId> gone_order_;
};

}  // namespace kvmesh::shard

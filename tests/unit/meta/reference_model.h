// What the arbiter shall do, as the simplest program that says it: lists, searched from end to end,
// nothing kept that can be counted. Shares no code with the arbiter. Where the rules leave a choice
// (which of two equally old victims goes), it takes the arbiter's and checks that it is allowed.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"
#include "services/meta/core/options.h"

namespace kvmesh::meta::testing {

class ReferenceModel {
 public:
  ReferenceModel(const InstanceId& id, const TierPolicy& tiers, const ArbiterLimits& limits)
      : incarnation_{.number = 1, .id = id}, tiers_(tiers), limits_(limits) {}

  // `effects`: the arbiter's, asked only where the rules leave a choice. Returns what was to come
  // out, one line each, sorted (Expected).
  std::vector<std::string> Apply(const Command& command, MonoTime now,
                                 const std::vector<Effect>& effects);
  // The arbiter's effects in the same words.
  static std::vector<std::string> Spell(const std::vector<Effect>& effects);

  // The state, one line a thing, sorted.
  std::vector<std::string> State() const;
  // Stores that were over their budget when the last command granted room in them.
  const std::vector<std::string>& broken_budgets() const { return broken_budgets_; }

 private:
  enum class Kind { kWriting, kRow, kFragment, kDoomed };
  struct MSlab {
    SlabFacts facts;
    StoreUid store;
    SlabState state = SlabState::kReserved;
    bool confirmed = false;
    bool cuts_known = false;
    bool cuts_asked = false;
    uint64_t bytes = 0;
  };
  struct Thing {
    Kind kind = Kind::kWriting;
    Sha256Digest key;
    slab::KeyNamespace name_space;
    SlabFacts text;  // token_count 0: none yet
    int64_t last_used_ms = 0;
    uint32_t hits = 0;
    std::set<LeaseId> leases;
    std::vector<MSlab> slabs;
    std::vector<slab::CutPoint> cut_points;  // of a row
    bool was_row = false;
    MonoTime fragment_end;
    uint64_t queued = 0;  // when fragment_end was set
  };
  struct MReservation {
    Reserve request;
    Thing* thing = nullptr;
    std::vector<StoreUid> stores;  // by range
    enum { kWaiting, kReserved, kExpired } state = kWaiting;
    std::optional<Ticket> ticket;
    MonoTime ends;
    uint64_t serial = 0;
  };
  struct MStore {
    StoreHello hello;
    StoreState state = StoreState::kInventory;
    uint64_t quarantined = 0;
    MonoTime heard;
    MonoTime lost_at;
    std::optional<StoreHello> rival;
    MonoTime rival_wins_at;
    uint64_t slot = 0;
  };
  struct Waiter {
    bool for_key = false;
    AwaitFragment wants;
    MonoTime appear_until;
    MonoTime upload_until;
  };
  struct MLease {
    MonoTime ends;
  };

  // Commands.
  void Do(const Checkout& command);
  void Do(const Renew& command);
  void Do(const Checkin& command);
  void Do(const RowHit& command);
  void Do(const AwaitKey& command);
  void Do(const AwaitFragment& command);
  void Do(const Abandon& command);
  void Do(const Reserve& command);
  void Do(const CancelReservation& command);
  void Do(const EvictRows& command);
  void Do(const StoreHello& hello);
  void Do(const StoreInventory& page);
  void Do(const SlabAnnounced& announced);
  void Do(const SlabRemoved& removed);
  void Do(const SlabVerified& verified);
  void Do(const StoreHeartbeat& heartbeat);
  void Do(const StorePong& pong);
  void Do(const StoreGone& gone);
  void Do(const Tick& tick) {}
  void Do(const GoOn&) {}  // what it does at once needs no more

  void Timers();
  void Settle();
  bool PromoteOne();
  bool EvictOne();
  bool GrantOne();
  void SettleWaiters();
  bool TryWaiter(Ticket ticket, const Waiter& waiter);

  // Things.
  Thing* NewThing(Kind kind, const Sha256Digest& key, const slab::KeyNamespace& name_space);
  void Remove(Thing* thing);
  Thing* RowOf(const Sha256Digest& key);
  bool Readable(const Thing& thing) const;
  void Split(Thing* thing);
  void MakeFragment(Thing* thing);
  void OpenRow(Thing* thing);
  void CloseRow(Thing* thing);
  void Doom(Thing* thing);
  void DoomSlab(Thing* thing, size_t slab);
  void Drop(Thing* thing, size_t slab);
  void Link(const StoreUid& store, const SlabFacts& facts);
  void Touch(Thing* thing);
  std::pair<Thing*, size_t> Find(const SlabName& name, const StoreUid& store);
  std::optional<uint32_t> ModelLayers(const slab::KeyNamespace& name_space) const;
  void Learn(const slab::KeyNamespace& name_space, uint32_t layers);

  // Reservations.
  std::string CheckReserve(const Reserve& command);
  // Slabs of its key and write_id are known.
  bool HasSlabs(const Reserve& request) const;
  std::vector<StoreUid> Choose(const std::vector<Tier>& tiers, const Reserve& command,
                               bool when_empty) const;
  static uint64_t BytesOf(const Reserve& command);
  void Cancel(MReservation* reservation);
  void EraseReservation(MReservation* reservation);
  MReservation* ReservationOf(const Thing* thing);
  bool OnVerified(Thing* thing, size_t slab, bool sound);
  void OnLinked(Thing* thing);
  std::string SpellGrant(const MReservation& reservation) const;

  // Quotas.
  uint64_t HeldBy(const slab::KeyNamespace& name_space) const;
  uint64_t LearnQuota(const Reserve& command);
  bool IsOverQuota(const Reserve& command, uint64_t quota);
  void TrimAbove(const slab::KeyNamespace& name_space, uint64_t quota);
  void TrimTo(const slab::KeyNamespace& name_space, uint64_t target);

  // Stores.
  MStore* Heard(StreamId stream);
  void Attach(MStore* store, const StoreHello& hello);
  void Lose(MStore* store);
  void Close(MStore* store, const std::string& reason);
  bool Serves(const StoreUid& uid) const;
  uint64_t Live(const StoreUid& uid) const;
  uint64_t Evictable(const StoreUid& uid) const;
  uint64_t Reserved(const StoreUid& uid) const;
  uint64_t Waiting(const StoreUid& uid) const;
  uint64_t Deleting(const StoreUid& uid) const;
  uint64_t Fixed(const StoreUid& uid) const;

  void EndLease(const LeaseId& lease);
  void Expect(std::string line) { expected_.push_back(std::move(line)); }
  void ExpectAnswer(Ticket ticket, const std::string& answer);
  void ToStoreOf(const StoreUid& uid, const std::string& message);

  Incarnation incarnation_;
  const TierPolicy tiers_;
  const ArbiterLimits limits_;
  MonoTime now_;
  const std::vector<Effect>* effects_ = nullptr;
  std::vector<std::string> expected_;
  std::list<Thing> things_;
  std::list<MReservation> reservations_;
  std::map<StoreUid, MStore> stores_;
  std::map<LeaseId, MLease> leases_;
  std::map<Ticket, Waiter> waiters_;
  std::map<WriteId, MonoTime> cancelled_;
  std::map<std::string, uint32_t> model_layers_;  // by model_fp, while something is in it
  std::map<std::string, uint64_t> quotas_;        // likewise
  bool look_at_all_ = false;
  uint64_t serial_ = 0;
  std::vector<std::string> broken_budgets_;
};

}  // namespace kvmesh::meta::testing

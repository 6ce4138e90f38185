// Readers: leases on rows and fragments, and callers that wait for one to be there. Not
// thread-safe. Invariants: each lease and each waiter ends by itself; a waiter is answered once.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/meta/core/attachments.h"

namespace kvmesh::meta {

class Readers {
 public:
  Readers(Ledger& ledger, Rows& rows, Reservations& reservations, Attachments& attachments)
      : ledger_(ledger), rows_(rows), reservations_(reservations), attachments_(attachments) {}

  void Apply(const Checkout& command);
  void Apply(const Renew& command);
  void Apply(const Checkin& command);
  void Apply(const RowHit& command);
  void Apply(const AwaitKey& command);
  void Apply(const AwaitFragment& command);
  void Abandon(Ticket ticket);

  // Answers those that wait for these keys, where there is an answer now.
  void Settle(const std::vector<Sha256Digest>& changed_keys);
  void SettleAll();
  // Ends leases and waits whose time has come.
  void Expire();
  MonoTime Next() const;

  size_t waiters() const { return waiters_.size(); }

 private:
  struct Waiter {
    bool for_key = false;     // else for a fragment
    AwaitFragment wants;      // for_key: only its first position's key
    MonoTime appear_until;    // while nobody writes one; for_key: now
    MonoTime upload_until;    // while one is being written
    MonoTime looks_again_at;  // its place in expiry_
  };

  // False: refused, and answered.
  bool Grantable(Ticket ticket, const LeaseId& lease, GroupIndex group);
  void Grant(const Checkout& command, GroupIndex row);
  // The row that the lease pins, if it can be read; or kNone.
  GroupIndex HeldRow(const LeaseId& lease) const;
  void Wait(Ticket ticket, Waiter waiter);
  // Whether it is answered.
  bool TrySettle(Ticket ticket, const Waiter& waiter);
  bool TrySettleKey(Ticket ticket, const Waiter& waiter);
  bool TrySettleFragment(Ticket ticket, const Waiter& waiter);
  SlabIndex FindFragment(const AwaitFragment& wants, size_t* position) const;
  void Remove(Ticket ticket);

  Ledger& ledger_;
  Rows& rows_;
  Reservations& reservations_;
  Attachments& attachments_;
  absl::flat_hash_map<Ticket, Waiter> waiters_;
  absl::flat_hash_map<Sha256Digest, std::vector<Ticket>> by_key_;
  ExpiryQueue<Ticket> expiry_;
};

}  // namespace kvmesh::meta

#include "services/meta/core/readers.h"

#include <algorithm>

#include "services/meta/core/errors.h"

namespace kvmesh::meta {

// ---- Leases ----

bool Readers::Grantable(Ticket ticket, const LeaseId& lease, GroupIndex group) {
  const Leases::Lease* known = ledger_.leases.Find(lease);
  if (known != nullptr) {
    if (known->groups.size() == 1 && known->groups.front() == group) return true;
    ledger_.Answer(ticket, Refusal(absl::AlreadyExistsError("the lease_id pins something else"),
                                   "LEASE_ID_IN_USE"));
    return false;
  }
  if (ledger_.leases.size() < ledger_.limits().leases_max) return true;
  ledger_.Answer(ticket, TooMany("leases", ledger_.limits().leases_max, "TOO_MANY_LEASES"));
  return false;
}

GroupIndex Readers::HeldRow(const LeaseId& lease) const {
  const Leases::Lease* known = ledger_.leases.Find(lease);
  if (known == nullptr || known->groups.size() != 1) return kNone;
  const GroupIndex group = known->groups.front();
  const bool is_row = ledger_.slabs.group(group).kind == GroupKind::kRow;
  return is_row && rows_.Readable(group) ? group : kNone;
}

void Readers::Apply(const Checkout& command) {
  if (command.or_held) {
    if (const GroupIndex held = HeldRow(command.lease); held != kNone) {
      return Grant(command, held);
    }
  }
  const GroupIndex row = rows_.RowOfKey(command.key);
  const bool is_it =
      row != kNone &&
      ledger_.slabs.slab(ledger_.slabs.group(row).first_slab).write_id == command.write_id;
  if (!is_it || !rows_.Readable(row)) {
    ledger_.Count("checkouts_lost");
    ledger_.Answer(command.ticket,
                   absl::NotFoundError(is_it ? "a store of the row is lost" : "the row is gone"));
    return;
  }
  if (Grantable(command.ticket, command.lease, row)) Grant(command, row);
}

void Readers::Grant(const Checkout& command, GroupIndex row) {
  if (ledger_.leases.Find(command.lease) != nullptr) {
    ledger_.leases.Refresh(command.lease, ledger_.now + ledger_.limits().lease_ttl);
  } else {
    rows_.AddLease(row, command.lease);
    ledger_.Count("checkouts");
  }
  ledger_.Answer(command.ticket, LeaseGrant{.lease = command.lease,
                                            .ttl = ledger_.limits().lease_ttl,
                                            .row = rows_.Snapshot(row)});
}

void Readers::Apply(const Renew& command) {
  RenewResult result;
  for (const LeaseId& lease : command.leases) {
    const Leases::Lease* known = ledger_.leases.Find(lease);
    if (known == nullptr || known->groups.empty()) {
      result.unknown_leases.push_back(lease);
    } else {
      ledger_.leases.Refresh(lease, ledger_.now + ledger_.limits().lease_ttl);
    }
  }
  for (const WriteId& write : command.writes) {
    if (!reservations_.Renew(write)) result.unknown_writes.push_back(write);
  }
  ledger_.Answer(command.ticket, std::move(result));
}

void Readers::Apply(const Checkin& command) {
  const bool known = ledger_.leases.Find(command.lease) != nullptr;
  rows_.EndLease(command.lease);
  for (const SlabName& name : command.bad_slabs) attachments_.Verify(name);
  ledger_.Answer(command.ticket, Ended{.ended = known});
}

void Readers::Apply(const RowHit& command) {
  const auto group = static_cast<GroupIndex>(command.row);
  if (!ledger_.slabs.has_group(group)) return;
  const Group& row = ledger_.slabs.group(group);
  if (row.kind == GroupKind::kRow && row.key == command.key) rows_.Touch(group);
}

// ---- Waiting ----

void Readers::Apply(const AwaitKey& command) {
  Waiter waiter{
      .for_key = true,
      .wants = {.key_namespace = command.key_namespace, .positions = {{.key = command.key}}},
      .appear_until = ledger_.now,
      .upload_until = ledger_.now + command.wait};
  Wait(command.ticket, std::move(waiter));
}

void Readers::Apply(const AwaitFragment& command) {
  Wait(command.ticket, Waiter{.wants = command,
                              .appear_until = ledger_.now + command.appear_wait,
                              .upload_until = ledger_.now + command.upload_wait});
}

void Readers::Wait(Ticket ticket, Waiter waiter) {
  if (TrySettle(ticket, waiter)) return;
  if (waiters_.size() >= ledger_.limits().waiters_max) {
    ledger_.Answer(ticket,
                   TooMany("places to wait", ledger_.limits().waiters_max, "TOO_MANY_WAITERS"));
    return;
  }
  waiter.looks_again_at = std::max(ledger_.now, std::min(waiter.appear_until, waiter.upload_until));
  if (waiter.looks_again_at <= ledger_.now) waiter.looks_again_at = waiter.upload_until;
  expiry_.Add(waiter.looks_again_at, ticket);
  for (const FragmentPosition& position : waiter.wants.positions) {
    by_key_[position.key].push_back(ticket);
  }
  waiters_.emplace(ticket, std::move(waiter));
}

bool Readers::TrySettle(Ticket ticket, const Waiter& waiter) {
  return waiter.for_key ? TrySettleKey(ticket, waiter) : TrySettleFragment(ticket, waiter);
}

bool Readers::TrySettleKey(Ticket ticket, const Waiter& waiter) {
  const Sha256Digest& key = waiter.wants.positions.front().key;
  const GroupIndex row = rows_.RowOfKey(key);
  if (row != kNone && rows_.Readable(row)) {
    const std::optional<NamespaceId> id = ledger_.namespaces.Find(waiter.wants.key_namespace);
    if (id.has_value() && *id == ledger_.slabs.group(row).key_namespace) {
      ledger_.Answer(ticket, rows_.Snapshot(row));
    } else {
      ledger_.Answer(ticket, absl::NotFoundError("no such row in this namespace"));
    }
    return true;
  }
  if (!reservations_.LiveOn(key)) {
    ledger_.Answer(ticket, absl::NotFoundError("no such row, and nobody writes one"));
    return true;
  }
  if (ledger_.now < waiter.upload_until) return false;
  ledger_.Answer(ticket, absl::DeadlineExceededError("the row is still being written"));
  return true;
}

bool Readers::TrySettleFragment(Ticket ticket, const Waiter& waiter) {
  size_t position = 0;
  const SlabIndex slab = FindFragment(waiter.wants, &position);
  if (slab != kNone) {
    const GroupIndex group = ledger_.slabs.slab(slab).group;
    if (!Grantable(ticket, waiter.wants.lease, group)) return true;
    if (ledger_.leases.Find(waiter.wants.lease) != nullptr) {
      ledger_.leases.Refresh(waiter.wants.lease, ledger_.now + ledger_.limits().lease_ttl);
    } else {
      rows_.AddLease(group, waiter.wants.lease);
    }
    ledger_.Answer(ticket, FragmentGrant{.lease = waiter.wants.lease,
                                         .ttl = ledger_.limits().lease_ttl,
                                         .position = position,
                                         .slab = rows_.Place(slab)});
    return true;
  }
  const bool uploading = std::any_of(waiter.wants.positions.begin(), waiter.wants.positions.end(),
                                     [this, &waiter](const FragmentPosition& it) {
                                       return reservations_.LiveOn(it.key, waiter.wants.layers);
                                     });
  if (uploading && ledger_.now >= waiter.upload_until) {
    ledger_.Answer(ticket, absl::DeadlineExceededError("the fragment is still being written"));
    return true;
  }
  if (!uploading && ledger_.now >= waiter.appear_until) {
    ledger_.Answer(ticket, absl::NotFoundError("no such fragment has appeared"));
    return true;
  }
  return false;
}

// A live slab of exactly these layers, in a fragment or in a row; of the first position that has
// one.
SlabIndex Readers::FindFragment(const AwaitFragment& wants, size_t* position) const {
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(wants.key_namespace);
  if (!id.has_value()) return kNone;
  const SlabTable& slabs = ledger_.slabs;
  for (size_t i = 0; i < wants.positions.size(); ++i) {
    const FragmentPosition& at = wants.positions[i];
    for (GroupIndex g = slabs.FirstOfKey(at.key); g != kNone; g = slabs.group(g).next_of_key) {
      const Group& group = slabs.group(g);
      if (group.kind != GroupKind::kFragment && group.kind != GroupKind::kRow) continue;
      if (group.key_namespace != *id || group.token_count != at.token_count ||
          group.tokens_sha256 != at.tokens_sha256) {
        continue;
      }
      for (SlabIndex s = group.first_slab; s != kNone; s = slabs.slab(s).next) {
        const Slab& slab = slabs.slab(s);
        if (slab.layers() != wants.layers || !ledger_.Serves(slab.store)) continue;
        *position = i;
        return s;
      }
    }
  }
  return kNone;
}

void Readers::Abandon(Ticket ticket) {
  if (waiters_.contains(ticket)) Remove(ticket);
}

void Readers::Remove(Ticket ticket) {
  const auto found = waiters_.find(ticket);
  expiry_.Remove(found->second.looks_again_at, ticket);
  for (const FragmentPosition& position : found->second.wants.positions) {
    const auto waiting = by_key_.find(position.key);
    if (waiting == by_key_.end()) continue;  // a position named twice
    std::vector<Ticket>& tickets = waiting->second;
    tickets.erase(std::remove(tickets.begin(), tickets.end(), ticket), tickets.end());
    if (tickets.empty()) by_key_.erase(waiting);
  }
  waiters_.erase(found);
}

void Readers::Settle(const std::vector<Sha256Digest>& changed_keys) {
  if (waiters_.empty()) return;
  for (const Sha256Digest& key : changed_keys) {
    const auto waiting = by_key_.find(key);
    if (waiting == by_key_.end()) continue;
    const std::vector<Ticket> tickets = waiting->second;
    for (const Ticket ticket : tickets) {
      const auto found = waiters_.find(ticket);
      if (found != waiters_.end() && TrySettle(ticket, found->second)) Remove(ticket);
    }
  }
}

void Readers::SettleAll() {
  std::vector<Ticket> tickets;
  tickets.reserve(waiters_.size());
  for (const auto& [ticket, waiter] : waiters_) tickets.push_back(ticket);
  std::sort(tickets.begin(), tickets.end());
  for (const Ticket ticket : tickets) {
    if (TrySettle(ticket, waiters_.at(ticket))) Remove(ticket);
  }
}

void Readers::Expire() {
  while (const std::optional<LeaseId> lease = ledger_.leases.Due(ledger_.now)) {
    ledger_.Count("leases_lapsed");
    rows_.EndLease(*lease);
  }
  while (const std::optional<Ticket> ticket = expiry_.Due(ledger_.now)) {
    Waiter& waiter = waiters_.at(*ticket);
    if (TrySettle(*ticket, waiter)) {
      Remove(*ticket);
      continue;
    }
    // One limit has passed and the other counts: it lies ahead, or there were an answer.
    expiry_.Remove(waiter.looks_again_at, *ticket);
    waiter.looks_again_at = std::max(waiter.appear_until, waiter.upload_until);
    expiry_.Add(waiter.looks_again_at, *ticket);
  }
}

MonoTime Readers::Next() const {
  return std::min(ledger_.leases.Next(), expiry_.Next());
}

}  // namespace kvmesh::meta

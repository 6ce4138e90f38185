// Writers, readers and waiting callers of the simulated cluster.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "tests/sim/meta/cluster.h"

namespace kvmesh::meta::sim {

using testing::Describe;
using testing::FactsOf;
using testing::IdOf;
using testing::KeyOf;
using testing::LayersOf;
using testing::NamespaceOf;
using testing::NamespaceOfKey;
using testing::NumberOf;

namespace {

constexpr uint32_t kKeys = 6;
constexpr absl::Duration kRpcWait = absl::Seconds(8);

}  // namespace

struct Cluster::Write {
  Reserve request;
  uint32_t key = 0;
  uint32_t tokenisation = 0;
  bool mixed = false;  // its slabs are of two tokenisations: a writer's mistake
  WriteId write_id;
  size_t puts_left = 0;
  bool crashed = false;
  bool over = false;  // complete or given up
};

void Cluster::ScheduleWork() {
  const auto at_random = [this](uint32_t count, auto work) {
    for (uint32_t i = 0; i < count; ++i) {
      events_.After(dice_.Time(absl::Seconds(1), absl::Seconds(140)), work);
    }
  };
  at_random(dice_.Int(5, 50), [this] { StartWrite(); });
  at_random(dice_.Int(5, 40), [this] { StartRead(); });
  at_random(dice_.Int(0, 10), [this] { AwaitSomeKey(); });
  at_random(dice_.Int(0, 10), [this] { AwaitSomeFragment(); });
}

// ---- Writers ----

void Cluster::StartWrite() {
  const auto write = std::make_shared<Write>();
  write->key = dice_.Int(0, kKeys - 1);
  write->tokenisation = dice_.OneIn(5) ? 1 : 0;
  write->mixed = options_.faults && dice_.OneIn(10);
  const uint32_t layers = LayersOf(NamespaceOfKey(write->key));
  Reserve& request = write->request;
  request = {.request = IdOf<RequestId>(next_id_++),
             .kind = dice_.OneIn(4) ? ReservationKind::kFragment : ReservationKind::kRow,
             .key_namespace = NamespaceOf(NamespaceOfKey(write->key)),
             .key = KeyOf(write->key),
             .model_layers = layers,
             .reason = static_cast<slab::SaveReason>(dice_.Int(1, 5)),
             .room_wait = dice_.Time(absl::ZeroDuration(), absl::Seconds(2))};
  if (request.kind == ReservationKind::kFragment) {
    const uint32_t begin = dice_.Int(0, layers - 1);
    request.ranges = {{{begin, begin + 1}, dice_.Int(1, 6) * kPageBytes}};
  } else {
    for (uint32_t begin = 0; begin < layers;) {
      const uint32_t end = dice_.OneIn(2) ? layers : begin + 1;
      request.ranges.push_back({{begin, end}, dice_.Int(1, 6) * kPageBytes});
      begin = end;
    }
  }
  if (options_.faults && dice_.OneIn(8)) {
    events_.After(dice_.Time(absl::ZeroDuration(), absl::Seconds(6)),
                  [write] { write->crashed = true; });
  }
  TryReserve(write, 2);
}

void Cluster::TryReserve(std::shared_ptr<Write> write, int tries) {
  const auto make = [this, write](Ticket ticket) -> Command {
    Reserve reserve = write->request;
    reserve.ticket = ticket;
    reserve.write_id = IdOf<WriteId>(next_id_++);
    return reserve;
  };
  Call(make, kRpcWait, [this, write, tries](const std::optional<Answer>& answer) {
    if (write->crashed) return;
    if (answer.has_value() && std::holds_alternative<ReservationGrant>(*answer)) {
      ++stats_.granted;
      StartPuts(write, std::get<ReservationGrant>(*answer));
    } else if (!answer.has_value() && tries > 0) {
      TryReserve(write, tries - 1);
    } else if (!answer.has_value()) {
      CancelWrite(write);
    } else {
      ++stats_.refused_reservations;
    }
  });
}

void Cluster::StartPuts(std::shared_ptr<Write> write, const ReservationGrant& grant) {
  write->write_id = grant.write_id;
  write->puts_left = grant.ranges.size();
  if (grant.ranges.size() != write->request.ranges.size()) Broken("a grant has other ranges");
  for (size_t i = 0; i < grant.ranges.size(); ++i) {
    const SlabFacts facts =
        FactsOf({.key = write->key,
                 .tokenisation = (write->tokenisation + (write->mixed ? i : 0)) % 2,
                 .layers = grant.ranges[i].layers,
                 .write = NumberOf(grant.write_id),
                 .pages = static_cast<uint32_t>(write->request.ranges[i].size_bytes / kPageBytes),
                 .cut_points = 7});
    const bool slow = options_.faults && dice_.OneIn(15);
    const absl::Duration start = dice_.Time(absl::ZeroDuration(), absl::Seconds(slow ? 100 : 3));
    const absl::Duration time = dice_.Time(absl::Milliseconds(10), absl::Seconds(slow ? 90 : 4));
    events_.After(start, [this, write, facts, time, uid = grant.ranges[i].store] {
      if (write->crashed || write->over) return;
      StoreOf(uid)->Put(facts, time, [this, write](bool stored) {
        if (write->crashed || write->over) return;
        if (!stored) CancelWrite(write);
        if (--write->puts_left == 0) write->over = true;
      });
    });
  }
  KeepWrite(write);
}

void Cluster::KeepWrite(std::shared_ptr<Write> write) {
  events_.After(absl::Seconds(15), [this, write] {
    if (write->crashed || write->over) return;
    Call(
        [write](Ticket ticket) -> Command {
          return Renew{.ticket = ticket, .writes = {write->write_id}};
        },
        kRpcWait, [](const auto&) {});
    KeepWrite(write);
  });
}

void Cluster::CancelWrite(std::shared_ptr<Write> write) {
  write->over = true;
  Call(
      [write](Ticket ticket) -> Command {
        CancelReservation cancel{.ticket = ticket, .which = write->request.request};
        if (!write->write_id.is_zero()) cancel.which = write->write_id;
        return cancel;
      },
      kRpcWait, [](const auto&) {});
}

// ---- Readers ----

void Cluster::StartRead() {
  if (index_ == nullptr) return;
  std::vector<RowOpened> rows;
  for (const auto& [id, row] : index_->rows()) {
    if (index_->Readable(row)) rows.push_back(row);
  }
  if (rows.empty()) return;
  const RowOpened& row = rows[dice_.Int(0, static_cast<uint32_t>(rows.size()) - 1)];
  const LeaseId lease = IdOf<LeaseId>(next_id_++);
  const auto make = [row, lease](Ticket ticket) -> Command {
    return Checkout{
        .ticket = ticket, .key = row.key, .write_id = row.slabs.front().write_id, .lease = lease};
  };
  Call(make, kRpcWait, [this](const std::optional<Answer>& answer) {
    if (!answer.has_value() || !std::holds_alternative<LeaseGrant>(*answer)) return;
    const MonoTime until = events_.now() + dice_.Time(absl::ZeroDuration(), absl::Seconds(50));
    HoldLease(std::get<LeaseGrant>(*answer), until);
  });
}

// Reads all along, renews every 10 s; at the end checks in, or forgets to.
void Cluster::HoldLease(const LeaseGrant& grant, MonoTime until) {
  std::vector<SlabName> missing;
  for (const PlacedSlab& slab : grant.row.slabs) {
    const absl::Duration time = dice_.Time(absl::Milliseconds(1), absl::Seconds(9));
    if (!StoreOf(slab.store)->Read(slab.name, time)) missing.push_back(slab.name);
  }
  if (missing.empty() && events_.now() + absl::Seconds(10) < until) {
    events_.After(absl::Seconds(10), [this, grant, until] {
      Call(
          [grant](Ticket ticket) -> Command {
            return Renew{.ticket = ticket, .leases = {grant.lease}};
          },
          kRpcWait,
          [this, grant, until](const std::optional<Answer>& answer) {
            const auto* result = answer.has_value() ? std::get_if<RenewResult>(&*answer) : nullptr;
            if (result != nullptr && result->unknown_leases.empty()) HoldLease(grant, until);
          });
    });
    return;
  }
  if (options_.faults && dice_.OneIn(5)) return;
  Call(
      [grant, missing](Ticket ticket) -> Command {
        return Checkin{.ticket = ticket, .lease = grant.lease, .bad_slabs = missing};
      },
      kRpcWait, [](const auto&) {});
}

void Cluster::AwaitSomeKey() {
  const uint32_t key = dice_.Int(0, kKeys - 1);
  const absl::Duration wait = dice_.Time(absl::ZeroDuration(), absl::Seconds(10));
  Call(
      [key, wait](Ticket ticket) -> Command {
        return AwaitKey{.ticket = ticket,
                        .key_namespace = NamespaceOf(NamespaceOfKey(key)),
                        .key = KeyOf(key),
                        .wait = wait};
      },
      dice_.OneIn(4) ? wait / 2 : wait + kRpcWait, [](const auto&) {});
}

void Cluster::AwaitSomeFragment() {
  const uint32_t key = dice_.Int(0, kKeys - 1);
  const uint32_t begin = dice_.Int(0, LayersOf(NamespaceOfKey(key)) - 1);
  AwaitFragment await{.key_namespace = NamespaceOf(NamespaceOfKey(key)),
                      .layers = {begin, begin + 1},
                      .appear_wait = dice_.Time(absl::ZeroDuration(), absl::Seconds(2)),
                      .upload_wait = dice_.Time(absl::ZeroDuration(), absl::Seconds(10)),
                      .lease = IdOf<LeaseId>(next_id_++)};
  for (const uint32_t tokenisation : {0U, 1U}) {
    const SlabFacts facts = FactsOf({.key = key, .tokenisation = tokenisation});
    await.positions.push_back({.key = facts.name.key,
                               .tokens_sha256 = facts.tokens_sha256,
                               .token_count = facts.token_count});
  }
  const absl::Duration wait = std::max(await.appear_wait, await.upload_wait);
  Call(
      [await](Ticket ticket) -> Command {
        AwaitFragment mine = await;
        mine.ticket = ticket;
        return mine;
      },
      dice_.OneIn(4) ? wait / 2 : wait + kRpcWait, [](const auto&) {});
}

// ---- Promises ----

void Cluster::CheckPublished(const PlacedSlab& slab) {
  if (published_.contains({NumberOf(slab.store), Describe(slab.name)})) return;
  Broken(Describe(slab.name) + " is offered and was never published");
}

void Cluster::CheckRow(const RowSnapshot& row) {
  uint32_t covered = 0;
  for (const PlacedSlab& slab : row.slabs) {
    CheckPublished(slab);
    const auto facts = published_.find({NumberOf(slab.store), Describe(slab.name)});
    if (facts != published_.end() && facts->second.tokens_sha256 != row.tokens_sha256) {
      Broken("a row mixes two tokenisations");
    }
    if (slab.name.layers.begin > covered) Broken("a row has a gap");
    covered = std::max(covered, slab.name.layers.end);
  }
  if (covered != LayersOf(NamespaceOfKey(NumberOf(row.key)))) Broken("a row lacks layers");
}

SimStore* Cluster::StoreOf(const StoreUid& uid) {
  return stores_[NumberOf(uid)].get();
}

}  // namespace kvmesh::meta::sim

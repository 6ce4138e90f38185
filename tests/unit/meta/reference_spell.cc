// Effects and states in one line of text each, so that the arbiter and the reference model can be
// compared.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "tests/unit/meta/arbiter_values.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {
namespace {

std::string Code(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::StrCat(absl::StatusCodeToString(status.code()), reason.empty() ? "" : " ", reason);
}

struct SpellAnswer {
  std::string operator()(const absl::Status& status) const { return Code(status); }
  std::string operator()(const LeaseGrant& it) const {
    return absl::StrCat("lease ", NumberOf(it.lease), " of k", NumberOf(it.row.key));
  }
  std::string operator()(const FragmentGrant& it) const {
    return absl::StrCat("fragment ", it.position, " ", Describe(it.slab.name), "@",
                        NumberOf(it.slab.store));
  }
  std::string operator()(const ReservationGrant& it) const {
    std::string line = absl::StrCat("granted w", NumberOf(it.write_id));
    for (const ReservedRange& range : it.ranges) {
      absl::StrAppend(&line, " [", range.layers.begin, ",", range.layers.end, ")@",
                      NumberOf(range.store));
    }
    return line;
  }
  std::string operator()(const RowSnapshot& it) const {
    return absl::StrCat("row k", NumberOf(it.key));
  }
  std::string operator()(const RenewResult& it) const {
    std::string line = "renewed, unknown:";
    for (const LeaseId& lease : it.unknown_leases) absl::StrAppend(&line, " l", NumberOf(lease));
    for (const WriteId& write : it.unknown_writes) absl::StrAppend(&line, " w", NumberOf(write));
    return line;
  }
  std::string operator()(const Ended& it) const { return absl::StrCat("ended ", it.ended); }
  std::string operator()(const EvictResult& it) const {
    return absl::StrCat("evicted ", it.row_count, " ", it.size_bytes, " pinned ", it.pinned_count);
  }
};

struct SpellMessage {
  std::string operator()(const Welcome& it) const {
    return absl::StrCat("welcome ", it.incarnation.number);
  }
  std::string operator()(const DeleteSlab& it) const { return "delete " + Describe(it.name); }
  std::string operator()(const VerifySlab& it) const { return "verify " + Describe(it.name); }
  std::string operator()(const DescribeSlab& it) const { return "describe " + Describe(it.name); }
  std::string operator()(const RecordUse&) const { return ""; }  // a test of its own
  std::string operator()(const Ping&) const { return "ping"; }
};

}  // namespace

std::vector<std::string> ReferenceModel::Spell(const std::vector<Effect>& effects) {
  std::vector<std::string> lines;
  for (const Effect& effect : effects) {
    if (const auto* reply = std::get_if<Reply>(&effect)) {
      lines.push_back(absl::StrCat("answer ", static_cast<uint64_t>(reply->ticket), " ",
                                   std::visit(SpellAnswer(), reply->answer)));
    } else if (const auto* message = std::get_if<ToStore>(&effect)) {
      if (std::holds_alternative<RecordUse>(message->message)) continue;
      lines.push_back(absl::StrCat("to ", static_cast<uint64_t>(message->stream), " ",
                                   std::visit(SpellMessage(), message->message)));
    } else if (const auto* close = std::get_if<CloseStream>(&effect)) {
      lines.push_back(
          absl::StrCat("close ", static_cast<uint64_t>(close->stream), " ", Code(close->status)));
    }
  }
  absl::c_sort(lines);
  return lines;
}

void ReferenceModel::ExpectAnswer(Ticket ticket, const std::string& answer) {
  Expect(absl::StrCat("answer ", static_cast<uint64_t>(ticket), " ", answer));
}

void ReferenceModel::ToStoreOf(const StoreUid& uid, const std::string& message) {
  Expect(absl::StrCat("to ", static_cast<uint64_t>(stores_.at(uid).hello.stream), " ", message));
}

std::string ReferenceModel::SpellGrant(const MReservation& reservation) const {
  std::string line = absl::StrCat("granted w", NumberOf(reservation.request.write_id));
  for (size_t i = 0; i < reservation.stores.size(); ++i) {
    const LayerRange layers = reservation.request.ranges[i].layers;
    absl::StrAppend(&line, " [", layers.begin, ",", layers.end, ")@",
                    NumberOf(reservation.stores[i]));
  }
  return line;
}

std::vector<std::string> ReferenceModel::State() const {
  std::vector<std::string> lines;
  for (const Thing& thing : things_) {
    static constexpr const char* kNames[] = {"WRITING", "AVAILABLE", "FRAGMENT", "DELETING"};
    std::string state = kNames[static_cast<int>(thing.kind)];
    if (thing.kind == Kind::kRow && !Readable(thing)) state = "STORE_LOST";
    std::vector<std::string> slabs;
    for (const MSlab& slab : thing.slabs) {
      slabs.push_back(absl::StrCat(Describe(slab.facts.name), "@", NumberOf(slab.store), " ",
                                   ToString(slab.state), " ", slab.bytes / kPageBytes));
    }
    absl::c_sort(slabs);
    std::string line =
        absl::StrCat(state, " k", NumberOf(thing.key), " leases ", thing.leases.size(), " hits ",
                     thing.hits, " used ", thing.last_used_ms);
    for (const std::string& slab : slabs) absl::StrAppend(&line, " | ", slab);
    lines.push_back(std::move(line));
    if (thing.kind != Kind::kRow) continue;
    line = absl::StrCat("index k", NumberOf(thing.key), " t", NumberOf(thing.text.tokens_sha256),
                        " cuts");
    for (const slab::CutPoint& point : thing.cut_points) {
      absl::StrAppend(&line, " ", point.token_count);
    }
    for (const MSlab& slab : thing.slabs) {
      absl::StrAppend(&line, " [", slab.facts.name.layers.begin, ")@", NumberOf(slab.store));
    }
    lines.push_back(std::move(line));
  }
  for (const auto& [uid, store] : stores_) {
    lines.push_back(absl::StrCat("store ", NumberOf(uid), " ", ToString(store.state), " live ",
                                 Live(uid), " reserved ", Reserved(uid), " deleting ",
                                 Deleting(uid), " quarantined ", store.quarantined));
  }
  for (const MReservation& it : reservations_) {
    lines.push_back(absl::StrCat("reservation w", NumberOf(it.request.write_id), " ends ",
                                 absl::FormatDuration(it.ends)));
  }
  lines.push_back(absl::StrCat("leases ", leases_.size(), " waiters ", waiters_.size()));
  absl::c_sort(lines);
  return lines;
}

}  // namespace kvmesh::meta::testing

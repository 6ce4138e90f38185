#include "tests/unit/meta/random_commands.h"

namespace kvmesh::meta::testing {
namespace {

std::string Facts(const SlabFacts& facts) {
  return absl::StrCat(Describe(facts.name), " t", NumberOf(facts.tokens_sha256), " ",
                      facts.size_bytes / kPageBytes, "p crc", facts.payload_crc32c, " L",
                      facts.model_layers, " cuts", facts.cut_points.size(),
                      facts.ends_inside_character ? " inside" : "");
}

struct Spell {
  std::string operator()(const Checkout& it) const {
    return absl::StrCat("Checkout k", NumberOf(it.key), " w", NumberOf(it.write_id), " lease ",
                        NumberOf(it.lease), it.or_held ? " or held" : "");
  }
  std::string operator()(const Renew& it) const {
    return absl::StrCat("Renew ", it.leases.size(), " leases, ", it.writes.size(), " writes");
  }
  std::string operator()(const Checkin& it) const {
    return absl::StrCat("Checkin ", NumberOf(it.lease), ", bad: ", it.bad_slabs.size());
  }
  std::string operator()(const RowHit& it) const {
    return absl::StrCat("RowHit k", NumberOf(it.key));
  }
  std::string operator()(const AwaitKey& it) const {
    return absl::StrCat("AwaitKey k", NumberOf(it.key), " ", absl::FormatDuration(it.wait));
  }
  std::string operator()(const AwaitFragment& it) const {
    return absl::StrCat("AwaitFragment k", NumberOf(it.positions.front().key), "[", it.layers.begin,
                        ",", it.layers.end, ") ", absl::FormatDuration(it.appear_wait), " ",
                        absl::FormatDuration(it.upload_wait));
  }
  std::string operator()(const Abandon& it) const {
    return absl::StrCat("Abandon ", static_cast<uint64_t>(it.ticket));
  }
  std::string operator()(const Reserve& it) const {
    std::string line =
        absl::StrCat(it.kind == ReservationKind::kRow ? "Reserve row" : "Reserve fragment", " k",
                     NumberOf(it.key), " w", NumberOf(it.write_id), " r", NumberOf(it.request),
                     " wait ", absl::FormatDuration(it.room_wait), ":");
    for (const RangeBytes& range : it.ranges) {
      absl::StrAppend(&line, " [", range.layers.begin, ",", range.layers.end, ") ",
                      range.size_bytes);
    }
    if (it.namespace_bytes_max.has_value()) {
      absl::StrAppend(&line, " quota ", *it.namespace_bytes_max);
    }
    return line;
  }
  std::string operator()(const CancelReservation&) const { return "CancelReservation"; }
  std::string operator()(const EvictRows& it) const {
    return absl::StrCat("EvictRows", it.dry_run ? " dry" : "", " keys ", it.keys.size());
  }
  std::string operator()(const StoreHello& it) const {
    return absl::StrCat("Hello ", NumberOf(it.uid), " stream ", static_cast<uint64_t>(it.stream),
                        " boot ", NumberOf(it.boot), " ", it.budget_bytes / kPageBytes, "p");
  }
  std::string operator()(const StoreInventory& it) const {
    std::string line =
        absl::StrCat("Inventory stream ", static_cast<uint64_t>(it.stream), it.last ? " last" : "");
    for (const SlabFacts& facts : it.slabs) absl::StrAppend(&line, " {", Facts(facts), "}");
    return line;
  }
  std::string operator()(const SlabAnnounced& it) const {
    return absl::StrCat("Announced stream ", static_cast<uint64_t>(it.stream), " ", Facts(it.slab));
  }
  std::string operator()(const SlabRemoved& it) const {
    return absl::StrCat("Removed stream ", static_cast<uint64_t>(it.stream), " ",
                        Describe(it.name));
  }
  std::string operator()(const SlabVerified& it) const {
    return absl::StrCat("Verified ", Describe(it.name), it.sound ? " sound" : " bad");
  }
  std::string operator()(const StoreHeartbeat& it) const {
    return absl::StrCat("Heartbeat stream ", static_cast<uint64_t>(it.stream), " quarantined ",
                        it.quarantined_bytes / kPageBytes, "p, puts ", it.open_puts.size());
  }
  std::string operator()(const StorePong& it) const {
    return absl::StrCat("Pong stream ", static_cast<uint64_t>(it.stream));
  }
  std::string operator()(const StoreGone& it) const {
    return absl::StrCat("Gone stream ", static_cast<uint64_t>(it.stream));
  }
  std::string operator()(const Tick&) const { return "Tick"; }
  std::string operator()(const GoOn&) const { return "GoOn"; }
};

}  // namespace

std::string Describe(const Step& step) {
  return absl::StrCat("+", absl::FormatDuration(step.after), " ",
                      std::visit(Spell(), step.command));
}

}  // namespace kvmesh::meta::testing

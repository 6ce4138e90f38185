// `checkpoints ls|rm` and `reservations ls`: what the arbiter knows, and giving it up.
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/rpc/flags.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/meta_calls.h"

namespace kvmesh::cli {
namespace {

using Stub = v1::MetaService::Stub;

constexpr uint32_t kPageSize = 1000;
constexpr int kPagesMax = 100000;  // bounds the loop over what an arbiter answers

struct LsFlags {
  std::string meta;
  std::string key;
  bool fragments = false;
};

struct RmFlags {
  std::string meta;
  std::vector<std::string> keys;
  bool all = false;
  uint64_t idle_s = 0;
  bool dry_run = false;
};

// All pages of a listing: `take` keeps one page and returns the token of the next.
template <typename Request, typename Response, typename Take>
absl::Status ForPages(const std::string& meta,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      Request request, const Take& take) {
  const auto stub = MetaStub(meta);
  request.set_page_size(kPageSize);
  for (int page = 0; page < kPagesMax; ++page) {
    Response response;
    if (absl::Status called = CallMeta(*stub, method, request, &response); !called.ok()) {
      return called;
    }
    take(response);
    request.set_page_token(response.next_page_token());
    if (request.page_token().empty()) return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(meta, " lists more than ", kPagesMax, " pages"));
}

double Seconds(const v1::Millis& millis) {
  return static_cast<double>(millis.value()) / 1000;
}

uint64_t BytesOf(const v1::RowInfo& row) {
  uint64_t bytes = 0;
  for (const v1::SlabPlace& place : row.slabs()) bytes += place.size_bytes();
  return bytes;
}

int List(Context& context, const LsFlags& flags) {
  v1::ListRowsRequest request;
  request.set_key(flags.key);
  request.set_fragments(flags.fragments);
  std::vector<v1::RowSummary> rows;
  const absl::Status listed =
      ForPages(flags.meta, &Stub::ListRows, request, [&](const v1::ListRowsResponse& page) {
        rows.insert(rows.end(), page.rows().begin(), page.rows().end());
      });
  if (!listed.ok()) return Report(listed, context.json, context.interrupt->requested());
  if (!context.json) {
    std::printf("%8s %10s %6s %7s %9s %-14s %-13s %s\n", "TOKENS", "SIZE", "HITS", "LEASES", "IDLE",
                "TIERS", "STATE", "KEY");
    for (const v1::RowSummary& row : rows) {
      std::printf("%8u %10s %6u %7u %7.0f s %-14s %-13s %s\n", row.row().token_count(),
                  HumanBytes(static_cast<double>(BytesOf(row.row()))).c_str(), row.hit_count(),
                  row.leases(), Seconds(row.idle()), TiersOf(row.row()).c_str(),
                  row.state().c_str(), row.row().key().c_str());
    }
    return kDone;
  }
  Json json = Json::array();
  for (const v1::RowSummary& row : rows) {
    Json entry = RowJson(row.row());
    entry["namespace"] = NamespaceJson(row.namespace_());
    entry["state"] = row.state();
    entry["hit_count"] = row.hit_count();
    entry["idle_ms"] = row.idle().value();
    entry["leases"] = row.leases();
    json.push_back(entry);
  }
  PrintJson({{"checkpoints", json}});
  return kDone;
}

int Remove(Context& context, const RmFlags& flags) {
  v1::EvictRowsRequest request;
  request.mutable_keys()->Add(flags.keys.begin(), flags.keys.end());
  request.set_all(flags.all);
  request.mutable_idle_min()->set_value(flags.idle_s * 1000);
  request.set_dry_run(flags.dry_run);
  v1::EvictRowsResponse response;
  const auto stub = MetaStub(flags.meta);
  const absl::Status called = CallMeta(*stub, &Stub::EvictRows, request, &response);
  if (!called.ok()) return Report(called, context.json, context.interrupt->requested());
  if (context.json) {
    Json rows = Json::array();
    for (const v1::RowInfo& row : response.rows()) rows.push_back(RowJson(row));
    PrintJson({{"removed", response.row_count()},
               {"size_bytes", response.size_bytes()},
               {"pinned", response.pinned_count()},
               {"dry_run", flags.dry_run},
               {"checkpoints", rows}});
    return kDone;
  }
  for (const v1::RowInfo& row : response.rows()) std::printf("%s\n", row.key().c_str());
  std::printf("%s %lu checkpoints, %s; %lu pinned ones were left alone\n",
              flags.dry_run ? "would remove" : "removed", response.row_count(),
              HumanBytes(static_cast<double>(response.size_bytes())).c_str(),
              response.pinned_count());
  return kDone;
}

Json ToJson(const v1::ReservationSummary& reservation) {
  Json ranges = Json::array();
  for (const v1::ReservedRange& range : reservation.ranges()) {
    ranges.push_back({{"layers", LayersJson(range.layers())},
                      {"store", range.address()},
                      {"tier", range.tier()}});
  }
  return {{"write_id", reservation.write_id()},
          {"key", reservation.key()},
          {"namespace", NamespaceJson(reservation.namespace_())},
          {"kind", reservation.kind() == v1::RESERVATION_KIND_ROW ? "row" : "fragment"},
          {"reason", ReasonName(reservation.reason())},
          {"state", reservation.state()},
          {"slabs_linked", reservation.slabs_linked()},
          {"ranges", ranges},
          {"size_bytes", reservation.size_bytes()},
          {"age_ms", reservation.age().value()},
          {"expires_in_ms", reservation.expires_in().value()}};
}

int ListReservations(Context& context, const std::string& meta) {
  Json reservations = Json::array();
  const absl::Status listed =
      ForPages(meta, &Stub::ListReservations, v1::ListReservationsRequest(),
               [&](const v1::ListReservationsResponse& page) {
                 for (const v1::ReservationSummary& reservation : page.reservations()) {
                   reservations.push_back(ToJson(reservation));
                 }
               });
  if (!listed.ok()) return Report(listed, context.json, context.interrupt->requested());
  if (context.json) {
    PrintJson({{"reservations", reservations}});
    return kDone;
  }
  std::printf("%-16s %-9s %-9s %10s %6s %9s %9s  %s\n", "STATE", "KIND", "REASON", "SIZE", "SLABS",
              "AGE", "EXPIRES", "KEY");
  for (const Json& entry : reservations) {
    std::printf("%-16s %-9s %-9s %10s %4lu/%lu %7.0f s %7.0f s  %s\n",
                entry["state"].get<std::string>().c_str(), entry["kind"].get<std::string>().c_str(),
                entry["reason"].get<std::string>().c_str(),
                HumanBytes(entry["size_bytes"].get<double>()).c_str(),
                entry["slabs_linked"].get<uint64_t>(), entry["ranges"].size(),
                entry["age_ms"].get<double>() / 1000, entry["expires_in_ms"].get<double>() / 1000,
                entry["key"].get<std::string>().c_str());
  }
  return kDone;
}

void AddLs(CLI::App& checkpoints, Action* chosen) {
  auto flags = std::make_shared<LsFlags>();
  CLI::App* command = checkpoints.add_subcommand("ls", "What lookups may find");
  AddMetaFlag(*command, &flags->meta);
  command->add_option("--key", flags->key, "Only the one with this key, 64 hex digits");
  command->add_flag("--fragments", flags->fragments, "Also what is incomplete or being deleted");
  command->callback([=] { *chosen = [=](Context& context) { return List(context, *flags); }; });
}

void AddRm(CLI::App& checkpoints, Action* chosen) {
  auto flags = std::make_shared<RmFlags>();
  CLI::App* command = checkpoints.add_subcommand("rm", "Give checkpoints up, in all their stores");
  AddMetaFlag(*command, &flags->meta);
  CLI::Option_group* which = command->add_option_group("which", "What to remove");
  which->add_option("keys", flags->keys, "Their keys, 64 hex digits each");
  which->add_flag("--all", flags->all, "All of them");
  which->require_option(1);
  command
      ->add_option("--idle-seconds", flags->idle_s, "Of those only what was not used for so long")
      ->check(rpc::WholeNumber(0, 1'000'000'000));
  command->add_flag("--dry-run", flags->dry_run, "Say what would be removed");
  command->callback([=] { *chosen = [=](Context& context) { return Remove(context, *flags); }; });
}

}  // namespace

void AddCheckpoints(CLI::App& app, Action* chosen) {
  CLI::App* checkpoints = app.add_subcommand("checkpoints", "Stored state, as the arbiter sees it");
  checkpoints->require_subcommand(1);
  checkpoints->fallthrough();
  AddLs(*checkpoints, chosen);
  AddRm(*checkpoints, chosen);
}

void AddReservations(CLI::App& app, Action* chosen) {
  CLI::App* reservations = app.add_subcommand("reservations", "Writes of checkpoints under way");
  reservations->require_subcommand(1);
  reservations->fallthrough();
  auto meta = std::make_shared<std::string>();
  CLI::App* command = reservations->add_subcommand("ls", "Those that live, oldest first");
  AddMetaFlag(*command, meta.get());
  command->callback(
      [=] { *chosen = [=](Context& context) { return ListReservations(context, *meta); }; });
}

}  // namespace kvmesh::cli

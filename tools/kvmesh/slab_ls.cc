// `slab ls`: what a store holds.
#include <chrono>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/outcome.h"
#include "tools/kvmesh/slab_commands.h"

namespace kvmesh::cli {
namespace {

constexpr std::chrono::seconds kCallTimeout{10};
constexpr uint32_t kPageSize = 1000;
constexpr int kPagesMax = 100000;  // bounds the loop over what a store answers

std::string IdText(const v1::SlabId& id) {
  return absl::StrCat(id.key(), ".", id.layers().begin(), "-", id.layers().end(), ".",
                      id.write_id());
}

Json ToJson(const std::string& store, const v1::SlabInfo& info) {
  return {{"store", store},
          {"id", IdText(info.slab())},
          {"key", info.slab().key()},
          {"layers", absl::StrCat(info.slab().layers().begin(), ":", info.slab().layers().end())},
          {"write_id", info.slab().write_id()},
          {"size_bytes", info.size_bytes()},
          {"token_count", info.token_count()},
          {"text_bytes", info.text_bytes()},
          {"cut_points", info.cut_points_size()},
          {"save_reason", info.save_reason()},
          {"hit_count", info.hit_count()},
          {"age_ms", info.age().value()},
          {"idle_ms", info.idle().value()}};
}

absl::Status ListStore(const std::string& store, Json* slabs) {
  const auto stub = v1::BlobService::NewStub(Dial(store, rpc::Role::kBlob));
  v1::ListRequest request;
  request.set_page_size(kPageSize);
  for (int page = 0; page < kPagesMax; ++page) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    v1::ListResponse response;
    const grpc::Status status = stub->List(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    for (const v1::SlabInfo& info : response.slabs()) slabs->push_back(ToJson(store, info));
    request.set_page_token(response.next_page_token());
    if (request.page_token().empty()) return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(store, " lists more than ", kPagesMax, " pages"));
}

int Ls(Context& context, const std::vector<std::string>& stores) {
  Json slabs = Json::array();
  for (const std::string& store : stores) {
    if (const absl::Status listed = ListStore(store, &slabs); !listed.ok()) {
      return Report(listed, context.json, context.interrupt->requested());
    }
  }
  if (context.json) {
    PrintJson({{"slabs", slabs}});
    return kDone;
  }
  std::printf("%8s %10s %6s %-9s %8s  %s\n", "TOKENS", "SIZE", "HITS", "REASON", "IDLE", "ID");
  for (const Json& slab : slabs) {
    std::printf("%8lu %10s %6lu %-9s %6.0f s  %s\n", slab["token_count"].get<uint64_t>(),
                HumanBytes(slab["size_bytes"].get<double>()).c_str(),
                slab["hit_count"].get<uint64_t>(), slab["save_reason"].get<std::string>().c_str(),
                slab["idle_ms"].get<double>() / 1000, slab["id"].get<std::string>().c_str());
  }
  return kDone;
}

}  // namespace

void AddSlabLs(CLI::App& slab, Action* chosen) {
  auto stores = std::make_shared<std::vector<std::string>>();
  CLI::App* command = slab.add_subcommand("ls", "The slabs that stores hold");
  command->add_option("--store", *stores, "Address of a store, host:port; may be repeated")
      ->required();
  command->callback([=] { *chosen = [=](Context& context) { return Ls(context, *stores); }; });
}

void AddSlab(CLI::App& app, Action* chosen) {
  CLI::App* slab = app.add_subcommand("slab", "Stored state");
  slab->require_subcommand(1);
  slab->fallthrough();
  AddSlabInspect(*slab, chosen);
  AddSlabLs(*slab, chosen);
}

}  // namespace kvmesh::cli

#include "tools/kvmesh/local_mesh.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/model/model.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/local_tiers.h"

namespace kvmesh::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kDrainGrace = absl::Seconds(35);
constexpr char kMetaName[] = "meta";
constexpr absl::string_view kTierPrefix = "tier-";

std::string ReadyPath(const std::string& data_dir, const std::string& name) {
  return absl::StrCat(data_dir, "/", name, ".ready");
}

absl::Status PrepareFolder(const std::string& data_dir) {
  std::error_code error;
  std::filesystem::create_directories(data_dir + "/logs", error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot create ", data_dir, ": ", error.message()));
  }
  return absl::OkStatus();
}

// What would stop every shard is told before any is started. NotFound, or as of Model::Open.
// InvalidArgument: more stages than layers.
absl::Status CheckModel(const MeshOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(options.model, error)) {
    return absl::NotFoundError(absl::StrCat("no model at ", options.model,
                                            ": give a .gguf file or a Hugging Face directory"));
  }
  KVMESH_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                          model::Model::Open(options.model));
  const uint32_t layers = model->config().layer_count;
  if (static_cast<uint32_t>(options.shards) <= layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(options.shards, " shards for a model of ", layers,
                                                 " layers; a shard holds one at least"));
}

// Why the mesh is not ready, or empty when it is.
std::string NotReadyReason(v1::RouterService::Stub& router) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GetStatusResponse response;
  const grpc::Status status = router.GetStatus(&context, {}, &response);
  if (!status.ok()) return absl::StrCat("the router does not answer: ", status.error_message());
  if (response.ready()) return "";
  return response.not_ready_reason().empty() ? "the route is not complete"
                                             : response.not_ready_reason();
}

// Why not all of `tiers` stores have told the arbiter what they hold; empty: they have.
std::string MissingInventory(v1::MetaService::Stub& meta, size_t tiers) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::MetaServiceGetStatsResponse stats;
  const grpc::Status status = meta.GetStats(&context, {}, &stats);
  if (!status.ok()) return absl::StrCat("the arbiter does not answer: ", status.error_message());
  size_t serving = 0;
  for (const v1::StoreStatus& store : stats.stores()) serving += store.state() == "SERVING" ? 1 : 0;
  if (serving >= tiers) return "";
  return absl::StrCat("the arbiter knows ", serving, " of ", tiers, " tiers");
}

}  // namespace

std::string ProgramOf(const std::string& service_name) {
  if (service_name == "router") return "kvmesh-router";
  if (service_name == kMetaName) return "kvmesh-meta";
  return absl::StartsWith(service_name, kTierPrefix) ? "kvmesh-blob" : "kvmesh-shard";
}

absl::StatusOr<std::unique_ptr<LocalMesh>> LocalMesh::Start(const MeshOptions& options,
                                                            Interrupt& interrupt) {
  KVMESH_RETURN_IF_ERROR(CheckModel(options));
  KVMESH_RETURN_IF_ERROR(PrepareFolder(options.data_dir));
  std::unique_ptr<LocalMesh> mesh(new LocalMesh(options));
  KVMESH_ASSIGN_OR_RETURN(mesh->lock_, MeshLock::Take(options.data_dir));
  RemoveMesh(options.data_dir);

  mesh->start_deadline_ = absl::Now() + options.start_timeout;
  absl::Status status = mesh->StartProcesses(interrupt);
  if (status.ok()) {
    auto router = v1::RouterService::NewStub(Dial(mesh->router(), rpc::Role::kRouter));
    status = mesh->WaitFor(interrupt, [&router] { return NotReadyReason(*router); });
  }
  if (status.ok()) status = mesh->ReadReadyFiles();
  // What computes first, as it is looked for first.
  std::stable_partition(mesh->file_.services.begin(), mesh->file_.services.end(),
                        [](const ServiceEntry& service) {
                          const std::string program = ProgramOf(service.name);
                          return program == "kvmesh-shard" || program == "kvmesh-router";
                        });
  if (status.ok()) status = WriteMesh(options.data_dir, mesh->file_);
  if (!status.ok()) {
    mesh->Stop(absl::Seconds(5));
    return status;
  }
  return mesh;
}

LocalMesh::~LocalMesh() {
  if (!options_.detached && !stopped_) Stop(kDrainGrace);
}

bool LocalMesh::Stop(absl::Duration grace) {
  stopped_ = true;
  // In the opposite order of their start: generations that run then end before their shards leave,
  // and what shards save as they leave finds its store.
  const absl::Span<Child> all = absl::MakeSpan(children_);
  bool clean = StopChildren(all.subspan(stores_ + shards_), grace);
  clean = StopChildren(all.subspan(stores_, shards_), grace) && clean;
  clean = StopChildren(all.subspan(0, stores_), grace) && clean;
  RemoveMesh(options_.data_dir);
  return clean;
}

absl::Status LocalMesh::StartProcesses(Interrupt& interrupt) {
  // Ports are chosen here, since every shard is told its peers' addresses before any of them runs.
  KVMESH_ASSIGN_OR_RETURN(ports_, FreePorts(options_.shards * options_.replicas + 2 +
                                            static_cast<int>(options_.tiers.size())));
  KVMESH_ASSIGN_OR_RETURN(const std::string meta, StartStores());
  std::string shards;
  KVMESH_RETURN_IF_ERROR(StartShards(meta, &shards));
  // A router that finds its shards serving is ready at once; one that does not tries again at
  // intervals.
  KVMESH_RETURN_IF_ERROR(WaitForReadyFiles(interrupt));
  if (!meta.empty()) KVMESH_RETURN_IF_ERROR(WaitForInventories(meta, interrupt));
  KVMESH_ASSIGN_OR_RETURN(file_.router, NextAddress());
  std::vector<std::string> arguments = {"--model", options_.model, "--shards", shards};
  if (!meta.empty()) arguments.insert(arguments.end(), {"--meta", meta});
  if (!options_.clients_file.empty()) {
    arguments.insert(arguments.end(), {"--clients-file", options_.clients_file});
  }
  arguments.insert(arguments.end(), options_.router_flags.begin(), options_.router_flags.end());
  KVMESH_RETURN_IF_ERROR(StartProcess("kvmesh-router", {.name = "router", .address = file_.router},
                                      std::move(arguments)));
  // Likewise: a first call that is refused would be repeated only seconds later.
  return WaitForReadyFiles(interrupt);
}

absl::StatusOr<std::string> LocalMesh::NextAddress() {
  if (ports_.empty()) return absl::InternalError("too few ports were asked for");
  const int port = ports_.back();
  ports_.pop_back();
  return absl::StrCat("127.0.0.1:", port);
}

absl::StatusOr<std::string> LocalMesh::StartStores() {
  KVMESH_ASSIGN_OR_RETURN(const std::vector<LocalTier> tiers,
                          PlanLocalTiers(options_.tiers, options_.data_dir));
  if (tiers.empty()) return "";
  KVMESH_ASSIGN_OR_RETURN(const std::string meta, NextAddress());
  std::vector<std::string> policy;
  for (const std::string& setting : LocalTierPolicy(tiers, options_.tier_policy)) {
    policy.insert(policy.end(), {"--tier-policy", setting});
  }
  KVMESH_RETURN_IF_ERROR(
      StartProcess("kvmesh-meta", {.name = kMetaName, .address = meta}, std::move(policy)));
  for (const LocalTier& tier : tiers) {
    ServiceEntry entry{.name = absl::StrCat(kTierPrefix, tier.tier)};
    KVMESH_ASSIGN_OR_RETURN(entry.address, NextAddress());
    std::vector<std::string> arguments = {
        "--tier", tier.tier, "--meta", meta, "--budget-bytes", absl::StrCat(tier.budget_bytes)};
    if (!tier.folder.empty()) arguments.insert(arguments.end(), {"--dir", tier.folder});
    KVMESH_RETURN_IF_ERROR(StartProcess("kvmesh-blob", std::move(entry), std::move(arguments)));
  }
  stores_ = children_.size();
  return meta;
}

std::string LocalMesh::StoreAddresses() const {
  std::vector<std::string> addresses;
  for (const ServiceEntry& service : file_.services) {
    if (absl::StartsWith(service.name, kTierPrefix)) addresses.push_back(service.address);
  }
  return absl::StrJoin(addresses, ",");
}

absl::Status LocalMesh::StartShards(const std::string& meta_address, std::string* all_addresses) {
  std::vector<ServiceEntry> shards;
  std::vector<std::string> addresses;
  for (int stage = 0; stage < options_.shards; ++stage) {
    for (int replica = 0; replica < options_.replicas; ++replica) {
      const std::string suffix = replica == 0 ? "" : absl::StrCat("-r", replica);
      KVMESH_ASSIGN_OR_RETURN(const std::string address, NextAddress());
      shards.push_back({.name = absl::StrCat("shard-", stage, suffix),
                        .address = address,
                        .layers = absl::StrCat(stage, "/", options_.shards)});
      addresses.push_back(address);
    }
  }
  *all_addresses = absl::StrJoin(addresses, ",");
  for (const ServiceEntry& shard : shards) {
    std::vector<std::string> arguments = {"--model",    options_.model, "--stage",
                                          shard.layers, "--peers",      *all_addresses};
    if (options_.threads > 0) {
      arguments.insert(arguments.end(), {"--threads", absl::StrCat(options_.threads)});
    }
    if (!meta_address.empty()) {
      arguments.insert(arguments.end(), {"--meta", meta_address, "--stores", StoreAddresses()});
    }
    arguments.insert(arguments.end(), options_.shard_flags.begin(), options_.shard_flags.end());
    KVMESH_RETURN_IF_ERROR(StartProcess("kvmesh-shard", shard, std::move(arguments)));
    ++shards_;
  }
  return absl::OkStatus();
}

absl::Status LocalMesh::WaitForInventories(const std::string& meta_address, Interrupt& interrupt) {
  auto meta = v1::MetaService::NewStub(Dial(meta_address, rpc::Role::kMeta));
  const size_t tiers = stores_ - 1;
  return WaitFor(interrupt, [&] { return MissingInventory(*meta, tiers); });
}

absl::Status LocalMesh::WaitForReadyFiles(Interrupt& interrupt) {
  return WaitFor(interrupt, [this] {
    for (const ServiceEntry& service : file_.services) {
      if (!std::filesystem::exists(ReadyPath(options_.data_dir, service.name))) {
        return absl::StrCat(service.name, " does not serve yet");
      }
    }
    return std::string();
  });
}

absl::Status LocalMesh::StartProcess(const std::string& program, ServiceEntry entry,
                                     std::vector<std::string> arguments) {
  const std::string ready = ReadyPath(options_.data_dir, entry.name);
  std::error_code ignored;
  std::filesystem::remove(ready, ignored);
  std::vector<std::string> command = {ProgramFolder() + "/" + program,
                                      "--listen",
                                      entry.address,
                                      "--metrics-port",
                                      "0",
                                      "--ready-file",
                                      ready};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (!options_.certificates.empty()) {
    const absl::string_view role = absl::StripPrefix(program, "kvmesh-");
    command.insert(command.end(), {"--tls-dir", absl::StrCat(options_.certificates, "/", role)});
  }
  KVMESH_ASSIGN_OR_RETURN(
      Child child,
      Child::Start({.name = entry.name,
                    .arguments = std::move(command),
                    .log_path = absl::StrCat(options_.data_dir, "/logs/", entry.name, ".log"),
                    .detached = options_.detached}));
  entry.pid = child.pid();
  children_.push_back(std::move(child));
  file_.services.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status LocalMesh::WaitFor(Interrupt& interrupt, const std::function<std::string()>& why_not) {
  std::string reason = "nothing answered yet";
  while (absl::Now() < start_deadline_) {
    for (Child& child : children_) {
      if (!child.Running()) return absl::UnavailableError(child.HowItEnded());
    }
    reason = why_not();
    if (reason.empty()) return absl::OkStatus();
    if (interrupt.WaitFor(kPollInterval)) return absl::CancelledError("interrupted");
  }
  return absl::UnavailableError(absl::StrCat("the mesh did not answer within ",
                                             absl::FormatDuration(options_.start_timeout), ": ",
                                             reason));
}

// Fills in what only the processes know: the ports of /metrics, and the layers of each stage.
absl::Status LocalMesh::ReadReadyFiles() {
  auto router = v1::RouterService::NewStub(Dial(file_.router, rpc::Role::kRouter));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1::GetStatusResponse status;
  if (const grpc::Status got = router->GetStatus(&context, {}, &status); !got.ok()) {
    return absl::UnavailableError(got.error_message());
  }
  for (ServiceEntry& service : file_.services) {
    std::ifstream in(ReadyPath(options_.data_dir, service.name));
    const Json ready = Json::parse(in, nullptr, false);
    if (ready.is_object()) service.metrics = ready.value("metrics", "");
    if (service.name == "router") service.layers.clear();
    for (const v1::ShardStatus& shard : status.shards()) {
      if (shard.address() != service.address) continue;
      service.layers = absl::StrCat(shard.layers().begin(), ":", shard.layers().end());
    }
  }
  return absl::OkStatus();
}

}  // namespace kvmesh::cli

#include "services/blob/grpc/blob_server.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/blob/tiers/file_tier.h"
#include "services/blob/tiers/ram_tier.h"

namespace kvmesh::blob {
namespace {

// The quarantine may take so much of the budget.
constexpr uint64_t kQuarantineShare = 20;
constexpr uint64_t kSharedMemoryStepBytes = 4 << 20;

absl::StatusOr<std::unique_ptr<Tier>> OpenTier(const BlobServerOptions& options,
                                               FileSystem& files) {
  if (options.service.tier == "ram") {
    return std::make_unique<RamTier>();
  }
  if (options.service.tier != "ram_file" && options.service.tier != "disk") {
    return absl::InvalidArgumentError(
        absl::StrCat("tier is \"", options.service.tier, "\"; ram, ram_file or disk"));
  }
  if (options.folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tier ", options.service.tier, " needs a folder"));
  }
  FileTierOptions file_tier{.folder = options.folder,
                            .quarantine_bytes_max = options.store.budget_bytes / kQuarantineShare};
  if (options.service.tier == "ram_file") {
    file_tier.allocate_step_bytes = kSharedMemoryStepBytes;
    file_tier.in_memory = true;
  }
  return FileTier::Open(files, file_tier);
}

// How clients reach a server that listens at `listen` (host:port or unix:PATH) on `port`.
std::string AdvertisedAddress(const BlobServerOptions& options, int port) {
  const std::string& listen = options.server.listen;
  if (!options.advertise.empty()) return options.advertise;
  if (absl::StartsWith(listen, "unix:")) return listen;
  std::string host = listen.substr(0, listen.rfind(':'));
  if (host.empty() || host == "0.0.0.0" || host == "[::]") host = options.meta.facts.node;
  return absl::StrCat(host, ":", port);
}

}  // namespace

void EventRelay::OnPut(const PutResult& put) {
  for (StoreEvents* listener : listeners_) listener->OnPut(put);
}

void EventRelay::OnRemoved(const SlabName& name) {
  for (StoreEvents* listener : listeners_) listener->OnRemoved(name);
}

void EventRelay::OnQuarantined(const SlabName& name, const absl::Status& why) {
  for (StoreEvents* listener : listeners_) listener->OnQuarantined(name, why);
}

absl::StatusOr<std::unique_ptr<BlobServer>> BlobServer::Start(const BlobServerOptions& options,
                                                              FileSystem& files,
                                                              const Clock& clock) {
  std::unique_ptr<BlobServer> blob(new BlobServer());
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, OpenTier(options, files));
  KVMESH_ASSIGN_OR_RETURN(blob->store_,
                          SlabStore::Open(options.store, std::move(tier), blob->events_));
  blob->blob_metrics_.SetStartup(blob->store_->startup_report());
  ServiceOptions service = options.service;
  service.transfers_max = options.store.transfers_max;
  blob->context_ =
      std::make_unique<ServiceContext>(service, clock, *blob->store_, blob->blob_metrics_);
  blob->context_->UpdateUsage();
  if (!options.meta.arbiter.empty()) KVMESH_RETURN_IF_ERROR(blob->MakeLink(options, files));
  blob->service_ = std::make_unique<BlobServiceImpl>(*blob->context_);
  KVMESH_ASSIGN_OR_RETURN(
      blob->server_,
      rpc::RpcServer::Start(options.server, {{"kvmesh.v1.BlobService", blob->service_.get()}},
                            blob->metrics_));
  blob->server_->SetServing(true);
  if (blob->link_ != nullptr) {
    blob->link_->Start(AdvertisedAddress(options, blob->server_->port()));
  }
  return blob;
}

absl::Status BlobServer::MakeLink(const BlobServerOptions& options, FileSystem& files) {
  const std::string folder = options.service.tier == "ram" ? std::string() : options.folder;
  KVMESH_ASSIGN_OR_RETURN(StoreIdentity identity,
                          StoreIdentity::Open(files, folder, RandomId<StoreId>()));
  MetaLinkOptions meta = options.meta;
  meta.tls = options.server.tls;
  meta.facts.tier = options.service.tier;
  meta.facts.budget_bytes = options.store.budget_bytes;
  meta.facts.boot_id = RandomId<InstanceId>();
  link_ = std::make_unique<MetaLink>(std::move(meta), *context_, std::move(identity));
  events_.Add(*link_);
  return absl::OkStatus();
}

BlobServer::~BlobServer() {
  Shutdown(absl::ZeroDuration());
}

void BlobServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr || context_ == nullptr) return;
  server_->SetServing(false);
  // Nothing more is reserved here; the puts that run may end.
  if (link_ != nullptr) link_->Stop();
  context_->pacer.Stop();
  server_->Shutdown(grace);
  // All calls have ended; what they left to the executors runs before the store goes.
  context_.reset();
}

}  // namespace kvmesh::blob

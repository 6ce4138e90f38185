#include "services/blob/grpc/blob_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/blob/tiers/file_tier.h"
#include "services/blob/tiers/ram_tier.h"

namespace kvmesh::blob {
namespace {

// The quarantine may take so much of the budget.
constexpr uint64_t kQuarantineShare = 20;

absl::StatusOr<std::unique_ptr<Tier>> OpenTier(const BlobServerOptions& options,
                                               FileSystem& files) {
  if (options.service.tier == "ram") {
    return std::make_unique<RamTier>(options.store.budget_bytes);
  }
  if (options.service.tier != "ram_file" && options.service.tier != "disk") {
    return absl::InvalidArgumentError(
        absl::StrCat("tier is \"", options.service.tier, "\"; ram, ram_file or disk"));
  }
  if (options.folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tier ", options.service.tier, " needs a folder"));
  }
  return FileTier::Open(files,
                        {.folder = options.folder,
                         .quarantine_bytes_max = options.store.budget_bytes / kQuarantineShare});
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobServer>> BlobServer::Start(const BlobServerOptions& options,
                                                              FileSystem& files,
                                                              const Clock& clock) {
  std::unique_ptr<BlobServer> blob(new BlobServer());
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, OpenTier(options, files));
  KVMESH_ASSIGN_OR_RETURN(blob->store_,
                          SlabStore::Open(options.store, std::move(tier), blob->blob_metrics_));
  blob->blob_metrics_.SetStartup(blob->store_->startup_report());
  ServiceOptions service = options.service;
  service.transfers_max = options.store.transfers_max;
  blob->context_ =
      std::make_unique<ServiceContext>(service, clock, *blob->store_, blob->blob_metrics_);
  blob->context_->UpdateUsage();
  blob->service_ = std::make_unique<BlobServiceImpl>(*blob->context_);
  KVMESH_ASSIGN_OR_RETURN(
      blob->server_,
      rpc::RpcServer::Start(options.server, {{"kvmesh.v1.BlobService", blob->service_.get()}},
                            blob->metrics_));
  blob->server_->SetServing(true);
  return blob;
}

BlobServer::~BlobServer() {
  Shutdown(absl::ZeroDuration());
}

void BlobServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr || context_ == nullptr) return;
  server_->SetServing(false);
  context_->pacer.Stop();
  server_->Shutdown(grace);
  // All calls have ended; what they left to the executors runs before the store goes.
  context_.reset();
}

}  // namespace kvmesh::blob

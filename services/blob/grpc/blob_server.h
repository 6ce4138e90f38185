// A whole kvmesh-blob: tier, store, service, server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "services/blob/grpc/blob_metrics.h"
#include "services/blob/grpc/blob_service.h"
#include "services/blob/grpc/meta_link.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::blob {

struct BlobServerOptions {
  rpc::ServerOptions server;
  std::string folder;  // of the file tiers
  StoreOptions store;
  ServiceOptions service;  // its `tier` is "ram", "ram_file" or "disk"
  MetaLinkOptions meta;    // its facts are filled from the others, but for the node
  std::string advertise;   // how clients dial this store; empty: from the listening address
};

// Tells several what the store tells one. Set up before the first event.
class EventRelay final : public StoreEvents {
 public:
  void Add(StoreEvents& listener) { listeners_.push_back(&listener); }
  void OnPut(const PutResult& put) override;
  void OnRemoved(const SlabName& name) override;
  void OnQuarantined(const SlabName& name, const absl::Status& why) override;

 private:
  std::vector<StoreEvents*> listeners_;
};

// Thread-safe. Serves from Start until Shutdown or its end.
class BlobServer {
 public:
  // Recovers the folder before it listens. `files` and `clock` must outlive the server.
  // InvalidArgument: an unknown tier, or no folder for a file tier. FailedPrecondition: the folder
  // is another process's. ResourceExhausted, Unavailable: the medium; the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<BlobServer>> Start(const BlobServerOptions& options,
                                                           FileSystem& files, const Clock& clock);
  ~BlobServer();

  const rpc::RpcServer& server() const { return *server_; }
  int port() const { return server_->port(); }
  SlabStore& store() { return *store_; }
  const metrics::Metrics& metrics() const { return metrics_; }

  // Refuses new calls, lets running ones end for `grace`.
  void Shutdown(absl::Duration grace);

 private:
  BlobServer() : metrics_("blob"), blob_metrics_(metrics_) { events_.Add(blob_metrics_); }
  absl::Status MakeLink(const BlobServerOptions& options, FileSystem& files);

  metrics::Metrics metrics_;
  BlobMetrics blob_metrics_;
  EventRelay events_;
  std::unique_ptr<MetaLink> link_;  // outlives the context, whose executors report to it
  std::unique_ptr<SlabStore> store_;
  std::unique_ptr<ServiceContext> context_;
  std::unique_ptr<BlobServiceImpl> service_;
  std::unique_ptr<rpc::RpcServer> server_;
};

}  // namespace kvmesh::blob

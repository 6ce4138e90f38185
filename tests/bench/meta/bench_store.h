// A store of the bench: says an inventory of any length without keeping it, obeys deletes.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/meta/core/effects.h"

namespace kvmesh::bench {

// As a store announces one slab of a row in the namespace of ChatCorpus.
kvmesh::v1::SlabAnnouncement AnnouncementOf(const meta::RowOpened& row, const meta::RowSlab& slab);

// Announce is thread-safe.
class BenchStore {
 public:
  BenchStore(std::string tier, uint64_t budget_bytes)
      : tier_(std::move(tier)), budget_bytes_(budget_bytes) {}
  ~BenchStore() { Detach(); }

  // Says hello and then `count` rows. Returns when the last page was written.
  using RowAt = std::function<meta::RowOpened(uint32_t row)>;
  void Attach(const std::shared_ptr<grpc::Channel>& channel, uint32_t count, const RowAt& row_at);
  void Detach();
  // Both slabs of a row, under the write that was reserved for it.
  void Announce(meta::RowOpened row, const WriteId& write_id);

  uint64_t deletes() const { return deletes_.load(); }

 private:
  using Stream =
      grpc::ClientReaderWriter<kvmesh::v1::AttachStoreRequest, kvmesh::v1::AttachStoreResponse>;
  void Read();
  void Beat();  // until it is detached
  void Write(const kvmesh::v1::AttachStoreRequest& frame);

  const std::string tier_;
  const uint64_t budget_bytes_;
  const InstanceId id_ = RandomId<InstanceId>();
  const InstanceId boot_ = RandomId<InstanceId>();
  std::unique_ptr<kvmesh::v1::MetaService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::thread reader_;
  std::thread beats_;
  Mutex write_mutex_;  // gRPC takes one write at a time
  std::atomic<bool> welcome_{false};
  std::atomic<bool> detaching_{false};
  std::atomic<uint64_t> deletes_{0};
};

}  // namespace kvmesh::bench

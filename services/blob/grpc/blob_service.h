// BlobService over a SlabStore: checks shapes, delegates to executors, converts status, counts.
//
// Puts and gets run raw, on gRPC's own buffers: a chunk is written to the medium from the slices it
// arrived in, and sent from the buffer it was read into.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/rpc/checked_service.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "services/blob/grpc/blob_metrics.h"
#include "services/blob/grpc/buffer_pool.h"
#include "services/blob/grpc/executor.h"
#include "services/blob/grpc/pacer.h"
#include "services/blob/grpc/stall_watch.h"
#include "services/blob/tiers/slab_store.h"

namespace kvmesh::blob {

struct ServiceOptions {
  std::string tier;
  uint32_t transfers_max = 32;
  uint32_t io_threads = 8;
  absl::Duration stall_timeout = absl::Seconds(30);
  uint64_t verify_bytes_per_second = 200 << 20;
};

// What the reactors of one service share. Outlives them.
struct ServiceContext {
  ServiceContext(const ServiceOptions& service_options, const Clock& service_clock,
                 SlabStore& slab_store, BlobMetrics& blob_metrics);

  void UpdateUsage() { metrics.SetUsage(store.usage(), store.transfers()); }

  const ServiceOptions options;
  const Clock& clock;
  SlabStore& store;
  BlobMetrics& metrics;
  StallWatch stalls;
  Pacer pacer;
  std::atomic<bool> verifying{false};
  std::shared_ptr<BufferPool> buffers;  // shared with the buffers, which gRPC may hold longer
  Executor transfers;
  Executor deletes;  // never behind puts
  Executor verifies;
};

// Seconds since the epoch, as slabs carry them.
uint64_t WallClockSeconds();

using BlobServiceBase =
    v1::BlobService::WithRawCallbackMethod_Put<v1::BlobService::WithRawCallbackMethod_Get<
        v1::BlobService::WithCallbackMethod_Delete<v1::BlobService::WithCallbackMethod_Stat<
            v1::BlobService::WithCallbackMethod_List<v1::BlobService::WithCallbackMethod_Verify<
                v1::BlobService::WithCallbackMethod_GetStats<v1::BlobService::Service>>>>>>>;

class BlobServiceImpl final : public rpc::CheckedService<v1::BlobService, BlobServiceBase> {
 public:
  explicit BlobServiceImpl(ServiceContext& context);

  grpc::ServerReadReactor<grpc::ByteBuffer>* Put(grpc::CallbackServerContext* call,
                                                 grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Get(grpc::CallbackServerContext* call,
                                                  const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* call,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override;
  grpc::ServerUnaryReactor* Stat(grpc::CallbackServerContext* call, const v1::StatRequest* request,
                                 v1::StatResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call, const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerWriteReactor<v1::VerifyResponse>* Verify(grpc::CallbackServerContext* call,
                                                       const v1::VerifyRequest* request) override;
  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* call,
                                     const v1::BlobServiceGetStatsRequest* request,
                                     v1::BlobServiceGetStatsResponse* response) override;

 private:
  ServiceContext& context_;
};

// ResourceExhausted QUEUE_FULL with a retry delay.
absl::Status BusyStatus(absl::string_view what);

// Each deletes itself in OnDone.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewPutReactor(ServiceContext& context,
                                                         grpc::CallbackServerContext* call,
                                                         grpc::ByteBuffer* response);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewGetReactor(ServiceContext& context,
                                                          grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer* request);
grpc::ServerWriteReactor<v1::VerifyResponse>* NewVerifyReactor(ServiceContext& context,
                                                               grpc::CallbackServerContext* call,
                                                               const v1::VerifyRequest* request);

}  // namespace kvmesh::blob

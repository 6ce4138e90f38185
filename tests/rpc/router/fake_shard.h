// A shard service that computes nothing: it answers every step with the next token of a fixed rule,
// and fails on demand. One real gRPC server per object, on a loopback port. Thread-safe.
#pragma once

#include <grpcpp/server.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/router/core/route_planner.h"

namespace kvmesh::router {

inline constexpr uint32_t kFakeLayers = 4;
inline constexpr uint32_t kFakeVocab = 27;  // a to z, then the end of sequence

// The token after this sequence.
uint32_t FakeNext(const std::vector<uint32_t>& sequence);
ModelIdentity FakeIdentity();

class FakeShard final : public v1::ShardService::Service {
 public:
  struct Options {
    LayerRange layers{0, kFakeLayers};
    bool supports_kv_cache = true;
    bool token_ids = true;  // false: answers with text alone
    std::string quant = "fake";
    int port = 0;
  };
  explicit FakeShard(Options options);
  ~FakeShard() override;

  std::string address() const { return address_; }
  int port() const { return port_; }

  // Called for each Compute frame before it is answered: not OK ends the stream with that status.
  void OnCompute(std::function<grpc::Status(const v1::Compute&)> hook);
  // What the streams so far began and ended with.
  std::vector<v1::Open> opens() const;
  int closes(v1::Close::Disposition disposition) const;
  int dropped_sessions() const;
  int open_streams() const;

  grpc::Status Forward(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override;
  grpc::Status GetSession(grpc::ServerContext* context, const v1::GetSessionRequest* request,
                          v1::GetSessionResponse* response) override;
  grpc::Status DropSession(grpc::ServerContext* context, const v1::DropSessionRequest* request,
                           v1::DropSessionResponse* response) override;

 private:
  v1::WatchResponse Facts() const;
  grpc::Status Serve(grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream);

  const Options options_;
  const InstanceId instance_ = RandomId<InstanceId>();
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  int port_ = 0;

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<grpc::Status(const v1::Compute&)> hook_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Open> opens_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::Close::Disposition> closes_ ABSL_GUARDED_BY(mutex_);
  int dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvmesh::router

// The RPCs of kvmesh.v1.ShardService: validates shape, delegates to the runtime, converts statuses,
// counts.
#pragma once

#include "common/rpc/checked_service.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/shard/grpc/shard_runtime.h"
#include "services/shard/grpc/watch_hub.h"

namespace kvmesh::shard {

class ShardService final : public rpc::CheckedService<v1::ShardService> {
 public:
  // `description` holds what never changes, its `shard` too; all references outlive the service.
  // `drain` starts the drain of the whole process.
  ShardService(ShardRuntime& runtime, const v1::DescribeResponse& description,
               std::function<void()> drain);

  WatchHub& watchers() { return watchers_; }

  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* DropSession(grpc::CallbackServerContext* context,
                                        const v1::DropSessionRequest* request,
                                        v1::DropSessionResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::ShardServiceDrainRequest* request,
                                  v1::ShardServiceDrainResponse* response) override;

 private:
  v1::WatchResponse Facts(const ShardSnapshot& snapshot) const;
  template <typename Handler>
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const char* rpc,
                                  Handler handler);
  absl::Status FillSessions(const v1::ListSessionsRequest& request,
                            v1::ListSessionsResponse* response);

  ShardRuntime& runtime_;
  const v1::DescribeResponse description_;
  const std::function<void()> drain_;
  WatchHub watchers_;
};

}  // namespace kvmesh::shard

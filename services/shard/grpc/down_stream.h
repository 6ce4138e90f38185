// The client's side of the Forward call to the next hop: frames out, answers in. One owner: itself,
// until OnDone.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/shard/grpc/shard_runtime.h"

namespace kvmesh::shard {

class DownStream final : public grpc::ClientBidiReactor<v1::ForwardRequest, v1::ForwardResponse> {
 public:
  // `runtime` outlives the call: it waits for it.
  static std::shared_ptr<DownStream> Make(ShardRuntime& runtime, StreamId id,
                                          const std::string& address,
                                          const std::shared_ptr<grpc::Channel>& channel,
                                          std::chrono::system_clock::time_point deadline);

  // Once, before anything else.
  void Start();
  // Queues a frame; credits bound how many can wait. A Close is the last one.
  void Send(forward::Frame frame);
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  DownStream(ShardRuntime& runtime, StreamId id, const std::string& address,
             const std::shared_ptr<grpc::Channel>& channel);
  struct Outgoing {
    v1::ForwardRequest request;
    bool last = false;
  };
  bool TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartNext();

  ShardRuntime& runtime_;
  const StreamId id_;
  const std::string address_;
  std::shared_ptr<grpc::Channel> channel_;  // shared with the stub
  std::unique_ptr<v1::ShardService::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<DownStream> self_;
  v1::ForwardResponse response_;
  absl::Status bad_answer_;  // only reads touch it

  Mutex mutex_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  Outgoing writing_message_;  // owned by gRPC while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // no answer comes any more: write nothing
  MonoTime step_sent_ ABSL_GUARDED_BY(mutex_);
  bool step_out_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvmesh::shard

// One Forward call to a first hop. Frames are queued and written one at a time; the core's credits
// bound the queue.
//
// Thread-safe. Lives until the call is over, whoever else lets go of it.
#pragma once

#include <grpcpp/client_context.h>

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/forward/frames.h"
#include "kvmesh/v1/shard.grpc.pb.h"

namespace kvmesh::router {

class ForwardStream final : public grpc::ClientBidiReactor<v1::ForwardRequest, v1::ForwardResponse>,
                            public std::enable_shared_from_this<ForwardStream> {
 public:
  struct Events {
    std::function<void(const forward::Answer&)> on_answer;
    std::function<void(const absl::Status&)> on_end;  // last, once
  };

  // `deadline`: infinite for none. Events come on other threads, one at a time, after Start.
  static std::shared_ptr<ForwardStream> Create(std::shared_ptr<v1::ShardService::Stub> stub,
                                               absl::Time deadline, Events events);

  // Begins the call. Once, before anything else.
  void Start();
  // Queues a frame; a Close half-closes the call after it. Ignored once the call is over.
  void Send(forward::Frame frame);
  void Cancel();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  ForwardStream(std::shared_ptr<v1::ShardService::Stub> stub, Events events)
      : stub_(std::move(stub)), events_(std::move(events)) {}
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<v1::ShardService::Stub> stub_;  // shared: its shard may be forgotten first
  const Events events_;
  grpc::ClientContext context_;
  v1::ForwardResponse response_;
  absl::Status bad_answer_;  // of the reading reactions alone
  std::shared_ptr<ForwardStream> self_;

  Mutex mutex_;
  std::deque<v1::ForwardRequest> queue_ ABSL_GUARDED_BY(mutex_);
  v1::ForwardRequest writing_ ABSL_GUARDED_BY(mutex_);
  bool write_runs_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // no further write may start
};

}  // namespace kvmesh::router

// The server's side of one Forward call: frames in, answers out. One owner: itself, until OnDone.
//
// While the tail runs a decode step it reads no frame: none that may come would be acted on before
// the step ends. gRPC gives the caller back its window with every read that begins, in a message of
// its own; that message, and the wake-up it costs the caller, then goes out together with the
// step's answer instead of in the middle of the computing, which may be on the same processors.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/rpc/parsed.h"
#include "common/rpc/span.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "services/shard/grpc/shard_runtime.h"

namespace kvmesh::shard {

class UpStream final
    : public grpc::ServerBidiReactor<rpc::Parsed<v1::ForwardRequest>, v1::ForwardResponse> {
 public:
  // The reactor for gRPC. `runtime` outlives the call.
  static UpStream* Accept(grpc::CallbackServerContext* context, ShardRuntime& runtime);

  // Queues an answer. A caller that does not read is cut when too many wait.
  void Send(forward::Answer answer);
  // Ends the call after the queued answers; the first call counts.
  void End(const absl::Status& status);
  void CutIfStalled(MonoTime now);
  std::chrono::system_clock::time_point deadline() const { return context_->deadline(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  UpStream(grpc::CallbackServerContext* context, ShardRuntime& runtime);
  // Hands the frame that was read to the hop. False: nothing more is read, or not now.
  bool TakeFrame();
  // The read that was put off until a step's answer.
  void ReadOn();
  void StartSpan(forward::Open& open);
  void Lost();
  // What gRPC is to do next, chosen under the lock and started outside it.
  enum class Next { kNothing, kWrite, kFinish };
  Next ChooseNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartNext(Next next);

  grpc::CallbackServerContext* const context_;
  ShardRuntime& runtime_;
  metrics::RpcTimer timer_;
  StreamId id_{0};
  std::shared_ptr<UpStream> self_;
  rpc::Parsed<v1::ForwardRequest> request_;
  bool opened_ = false;          // only reads touch it
  bool tail_ = false;            // likewise
  std::string session_;          // likewise, and OnDone after them; for the log
  rpc::Span span_;               // likewise
  bool close_received_ = false;  // likewise

  Mutex mutex_;
  std::deque<v1::ForwardResponse> queue_ ABSL_GUARDED_BY(mutex_);
  v1::ForwardResponse writing_message_;  // owned by gRPC while writing_
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool step_in_hand_ ABSL_GUARDED_BY(mutex_) = false;   // its answer starts the next read
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;  // the call cannot end meanwhile
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
  MonoTime waits_since_ ABSL_GUARDED_BY(mutex_);  // for the first frame, or for a write
  bool waits_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace kvmesh::shard

// One call whose messages stay in gRPC's own buffers, so that bulk bytes are not copied. Its owner
// waits for each step; every wait ends with the call's deadline.
// Not thread-safe. Order: Write*, WritesDone, Read*, Finish; any step may be left out but Finish.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/trace.h"
#include "common/rpc/call_group.h"

namespace kvmesh::rpc {

class RawCall {
 public:
  // `method`: "/package.Service/Method". `group`, which may be null, outlives it.
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          absl::Duration timeout, CallGroup* group = nullptr, const Trace& trace = {});
  ~RawCall();
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  // False: the call has ended; Finish says why.
  bool Write(const grpc::ByteBuffer& message);
  bool WritesDone();
  // False: the peer sends no more.
  bool Read(grpc::ByteBuffer* message);
  // Gives the call up; Finish still says how it ended.
  void Cancel() { context_.TryCancel(); }
  // Once, last. DeadlineExceeded after the timeout; else the peer's status.
  absl::Status Finish();

 private:
  // Waits for the step that was started last.
  bool Wait();

  grpc::ClientContext context_;
  const CallGroup::Member member_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool started_ = false;
  bool finished_ = false;
};

}  // namespace kvmesh::rpc

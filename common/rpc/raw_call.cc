#include "common/rpc/raw_call.h"

#include <chrono>

#include "common/rpc/span.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::rpc {

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 absl::Duration timeout, CallGroup* group, const Trace& trace)
    : member_(group, context_) {
  AddTrace(context_, trace);
  context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  call_ = grpc::GenericStub(channel).PrepareCall(&context_, method, &queue_);
  call_->StartCall(this);
  started_ = Wait();
}

RawCall::~RawCall() {
  if (!finished_) {
    context_.TryCancel();
    Finish().IgnoreError();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool RawCall::Write(const grpc::ByteBuffer& message) {
  if (!started_) return false;
  call_->Write(message, this);
  return Wait();
}

bool RawCall::WritesDone() {
  if (!started_) return false;
  call_->WritesDone(this);
  return Wait();
}

bool RawCall::Read(grpc::ByteBuffer* message) {
  if (!started_) return false;
  call_->Read(message, this);
  return Wait();
}

absl::Status RawCall::Finish() {
  grpc::Status status;
  call_->Finish(&status, this);
  Wait();
  finished_ = true;
  return FromGrpc(status);
}

bool RawCall::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

}  // namespace kvmesh::rpc

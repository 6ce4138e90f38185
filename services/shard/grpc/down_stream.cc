#include "services/shard/grpc/down_stream.h"

#include <utility>

#include "common/rpc/forward_codec.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::shard {

DownStream::DownStream(ShardRuntime& runtime, StreamId id, const std::string& address,
                       const std::shared_ptr<grpc::Channel>& channel)
    : runtime_(runtime),
      id_(id),
      address_(address),
      channel_(channel),
      stub_(v1::ShardService::NewStub(channel)) {}

std::shared_ptr<DownStream> DownStream::Make(ShardRuntime& runtime, StreamId id,
                                             const std::string& address,
                                             const std::shared_ptr<grpc::Channel>& channel,
                                             std::chrono::system_clock::time_point deadline) {
  std::shared_ptr<DownStream> stream(new DownStream(runtime, id, address, channel));
  stream->self_ = stream;
  stream->context_.set_deadline(deadline);
  return stream;
}

void DownStream::Start() {
  stub_->async()->Forward(&context_, this);
  // Frames are sent from other threads than gRPC's: the hold keeps the call until the last write is
  // done.
  AddHold();
  StartRead(&response_);
  StartCall();
}

void DownStream::Send(forward::Frame frame) {
  const auto* compute = std::get_if<forward::Compute>(&frame);
  const bool step = compute != nullptr && compute->want_logits;
  const bool last = std::holds_alternative<forward::Close>(frame);
  Outgoing out{.request = rpc::EncodeFrame(std::move(frame), runtime_.hidden_size()), .last = last};
  {
    MutexLock lock(&mutex_);
    if (over_) return;
    queue_.push_back(std::move(out));
    if (step) {
      step_out_ = true;
      step_sent_ = runtime_.clock().Now();
    }
    if (!TakeNext()) return;
  }
  StartNext();
}

bool DownStream::TakeNext() {
  if (writing_ || queue_.empty()) return false;
  writing_message_ = std::move(queue_.front());
  queue_.pop_front();
  writing_ = true;
  return true;
}

void DownStream::StartNext() {
  if (writing_message_.last) {
    StartWriteLast(&writing_message_.request, grpc::WriteOptions());
  } else {
    StartWrite(&writing_message_.request);
  }
}

void DownStream::OnWriteDone(bool ok) {
  bool release = false;
  bool next = false;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) queue_.clear();  // the end of the call comes by way of the reads
    release = over_;
    next = !over_ && TakeNext();
  }
  if (next) StartNext();
  if (release) RemoveHold();
}

void DownStream::OnReadDone(bool ok) {
  if (!ok) {
    bool release = false;
    {
      MutexLock lock(&mutex_);
      over_ = true;
      queue_.clear();
      release = !writing_;
    }
    if (release) RemoveHold();
    return;
  }
  absl::StatusOr<forward::Answer> answer = rpc::DecodeAnswer(std::move(response_));
  response_.Clear();
  if (!answer.ok()) {
    if (bad_answer_.ok()) bad_answer_ = answer.status();
    context_.TryCancel();
  } else if (bad_answer_.ok()) {
    if (std::holds_alternative<forward::Output>(*answer)) {
      MutexLock lock(&mutex_);
      if (std::exchange(step_out_, false)) {
        runtime_.metrics().ObserveDownstream(runtime_.clock().Now() - step_sent_);
      }
    }
    runtime_.OnDownAnswer(id_, *std::move(answer));
  }
  StartRead(&response_);
}

void DownStream::OnDone(const grpc::Status& status) {
  const absl::Status end = bad_answer_.ok()
                               ? rpc::FromGrpc(status)
                               : absl::InternalError(std::string(bad_answer_.message()));
  const std::shared_ptr<DownStream> self = std::move(self_);
  runtime_.OnDownEnd(id_, address_, std::move(channel_), end);
}

}  // namespace kvmesh::shard

#include "services/router/grpc/forward_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/forward_codec.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::router {

std::shared_ptr<ForwardStream> ForwardStream::Create(std::shared_ptr<v1::ShardService::Stub> stub,
                                                     absl::Time deadline, Events events) {
  std::shared_ptr<ForwardStream> stream(new ForwardStream(std::move(stub), std::move(events)));
  if (deadline != absl::InfiniteFuture()) {
    stream->context_.set_deadline(absl::ToChronoTime(deadline));
  }
  return stream;
}

void ForwardStream::Start() {
  self_ = shared_from_this();
  stub_->async()->Forward(&context_, this);
  // Writes start outside reactions: the hold keeps the call from ending under them.
  AddHold();
  StartRead(&response_);
  StartCall();
}

void ForwardStream::Send(forward::Frame frame) {
  // The router sends no hidden rows: the first hop embeds.
  v1::ForwardRequest request = rpc::EncodeFrame(std::move(frame), /*hidden_size=*/0);
  MutexLock lock(&mutex_);
  if (over_) return;
  queue_.push_back(std::move(request));
  if (!write_runs_) WriteNext();
}

void ForwardStream::WriteNext() {
  if (over_ || queue_.empty()) return;
  writing_ = std::move(queue_.front());
  queue_.pop_front();
  write_runs_ = true;
  // A write is no call: it takes no other lock and runs no reaction on this thread.
  if (writing_.has_close()) {
    StartWriteLast(&writing_, grpc::WriteOptions());
  } else {
    StartWrite(&writing_);
  }
}

void ForwardStream::Cancel() {
  context_.TryCancel();
}

void ForwardStream::OnWriteDone(bool ok) {
  MutexLock lock(&mutex_);
  write_runs_ = false;
  if (ok) WriteNext();
}

void ForwardStream::OnReadDone(bool ok) {
  if (ok) {
    absl::StatusOr<forward::Answer> answer = rpc::DecodeAnswer(std::move(response_));
    response_.Clear();
    if (answer.ok()) {
      events_.on_answer(*answer);
    } else if (bad_answer_.ok()) {
      bad_answer_ = absl::InternalError(
          absl::StrCat("the chain gave a malformed answer: ", answer.status().message()));
      context_.TryCancel();
    }
    return StartRead(&response_);
  }
  {
    MutexLock lock(&mutex_);
    over_ = true;
    queue_.clear();
  }
  RemoveHold();
}

void ForwardStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<ForwardStream> self = std::move(self_);
  events_.on_end(bad_answer_.ok() ? rpc::FromGrpc(status) : bad_answer_);
}

}  // namespace kvmesh::router

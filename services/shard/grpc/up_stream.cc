#include "services/shard/grpc/up_stream.h"

#include <glog/logging.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "common/rpc/forward_codec.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::shard {
namespace {

// Credits bound the answers that can wait; more means that frames are sent without reading what
// they lead to.
constexpr size_t kAnswersQueuedMax = 64;
constexpr absl::Duration kStallMax = absl::Seconds(30);

bool IsStep(const forward::Frame& frame) {
  const auto* compute = std::get_if<forward::Compute>(&frame);
  return compute != nullptr && compute->cache_mode == forward::CacheMode::kDecode &&
         compute->want_logits;
}

}  // namespace

UpStream::UpStream(grpc::CallbackServerContext* context, ShardRuntime& runtime)
    : context_(context),
      runtime_(runtime),
      timer_(runtime.metrics().metrics(), runtime.clock(), "Forward"),
      waits_since_(runtime.clock().Now()) {}

UpStream* UpStream::Accept(grpc::CallbackServerContext* context, ShardRuntime& runtime) {
  std::shared_ptr<UpStream> stream(new UpStream(context, runtime));
  stream->self_ = stream;
  stream->id_ = runtime.Register(stream);
  stream->StartRead(&stream->request_);
  return stream.get();
}

void UpStream::OnReadDone(bool ok) {
  if (!ok) {
    // After Close the caller has nothing more to say; without it the call was cancelled or its link
    // was lost.
    if (!close_received_) Lost();
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (!writing_) waits_ = false;
    if (status_.has_value()) return;
  }
  if (TakeFrame()) StartRead(&request_);
}

bool UpStream::TakeFrame() {
  absl::StatusOr<forward::Frame> frame =
      request_.status.ok() ? rpc::DecodeFrame(std::move(request_.message)) : request_.status;
  absl::Status status = frame.status();
  if (frame.ok() && !opened_ && !std::holds_alternative<forward::Open>(*frame)) {
    status = absl::InvalidArgumentError("the first frame of a stream must be Open");
  }
  if (!status.ok()) {
    if (opened_) runtime_.OnBadFrame(id_, status);
    End(status);
    return false;
  }
  if (auto* open = std::get_if<forward::Open>(&*frame)) {
    opened_ = true;
    tail_ = open->hops.size() == 1;
    session_ = open->session.ToHex();
    StartSpan(*open);
    LOG(INFO) << "session " << session_ << " opened, epoch " << static_cast<uint64_t>(open->epoch)
              << ", attempt " << static_cast<uint64_t>(open->attempt) << ", trace "
              << (span_.trace().exists() ? span_.trace().trace_id : "none");
  }
  close_received_ = close_received_ || std::holds_alternative<forward::Close>(*frame);
  request_.message.Clear();
  const bool step = tail_ && IsStep(*frame);
  if (step) {
    MutexLock lock(&mutex_);
    step_in_hand_ = true;
  }
  runtime_.OnFrame(id_, *std::move(frame));
  bool lost = false;
  {
    MutexLock lock(&mutex_);
    lost = lost_;
  }
  // The end may have overtaken the frame on another thread.
  if (lost) runtime_.OnUpLost(id_);
  return !lost && !step;
}

// What this hop does is a part of what its caller does, and the next hop's work is a part of this.
void UpStream::StartSpan(forward::Open& open) {
  const Trace parent = ParseTraceparent(open.traceparent).value_or(Trace());
  span_ = rpc::Span("shard", "forward", parent, static_cast<uint64_t>(open.attempt));
  span_.Set("session", session_);
  span_.Set("hop", open.hop_index);
  span_.Set("epoch", static_cast<uint64_t>(open.epoch));
  span_.Set("attempt", static_cast<uint64_t>(open.attempt));
  open.traceparent = span_.trace().ToTraceparent();
}

void UpStream::Lost() {
  {
    MutexLock lock(&mutex_);
    lost_ = true;
  }
  runtime_.OnUpLost(id_);
  End(absl::CancelledError("the caller ended the stream without Close"));
}

void UpStream::OnCancel() {
  Lost();
}

void UpStream::Send(forward::Answer answer) {
  const bool output = std::holds_alternative<forward::Output>(answer);
  Next next = Next::kNothing;
  bool cut = false;
  bool read = false;
  {
    MutexLock lock(&mutex_);
    if (status_.has_value()) return;
    queue_.push_back(rpc::EncodeAnswer(std::move(answer)));
    cut = queue_.size() > kAnswersQueuedMax;
    next = ChooseNext();
    if (output) read = starting_read_ = std::exchange(step_in_hand_, false);
  }
  StartNext(next);
  if (read) ReadOn();
  if (cut) context_->TryCancel();
}

void UpStream::ReadOn() {
  StartRead(&request_);
  Next next = Next::kNothing;
  {
    MutexLock lock(&mutex_);
    starting_read_ = false;
    next = ChooseNext();
  }
  StartNext(next);
}

void UpStream::End(const absl::Status& status) {
  Next next = Next::kNothing;
  {
    MutexLock lock(&mutex_);
    if (status_.has_value()) return;
    status_ = rpc::ToGrpc(status);
    next = ChooseNext();
  }
  StartNext(next);
}

void UpStream::CutIfStalled(MonoTime now) {
  {
    MutexLock lock(&mutex_);
    if (!waits_ || now - waits_since_ < kStallMax) return;
  }
  context_->TryCancel();
}

UpStream::Next UpStream::ChooseNext() {
  if (writing_ || finishing_) return Next::kNothing;
  if (!queue_.empty()) {
    writing_message_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    waits_ = true;
    waits_since_ = runtime_.clock().Now();
    return Next::kWrite;
  }
  if (!status_.has_value() || starting_read_) return Next::kNothing;
  finishing_ = true;
  return Next::kFinish;
}

void UpStream::StartNext(Next next) {
  if (next == Next::kWrite) {
    StartWrite(&writing_message_);
  } else if (next == Next::kFinish) {
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      status = *status_;
    }
    timer_.Finish(rpc::CodeName(status.error_code()));
    Finish(status);
  }
}

void UpStream::OnWriteDone(bool ok) {
  Next next = Next::kNothing;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    waits_ = false;
    if (!ok) queue_.clear();
    next = ChooseNext();
  }
  StartNext(next);
}

void UpStream::OnDone() {
  {
    MutexLock lock(&mutex_);
    if (status_.has_value()) span_.End(rpc::CodeName(status_->error_code()));
    if (!session_.empty() && status_.has_value()) {
      LOG(INFO) << "session " << session_ << " ended: " << rpc::CodeName(status_->error_code())
                << " " << absl::CHexEscape(status_->error_message());
    }
  }
  runtime_.Unregister(id_);
  self_.reset();
}

}  // namespace kvmesh::shard

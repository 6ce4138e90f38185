#include "services/meta/grpc/store_stream.h"

#include <deque>
#include <optional>
#include <utility>

#include "common/rpc/status_bridge.h"
#include "services/meta/grpc/store_codec.h"

namespace kvmesh::meta {
namespace {

// Commands that may wait for a store that is slow to read; each is some 150 bytes.
constexpr size_t kWaitingMax = 65536;

// Frames are read one at a time: the next one when the arbiter's thread has applied the one before.
class StoreStream final
    : public grpc::ServerBidiReactor<rpc::Parsed<v1::AttachStoreRequest>, v1::AttachStoreResponse>,
      public StoreConnection {
 public:
  StoreStream(ArbiterLoop& loop, MetaMetrics& metrics, const Clock& clock)
      : loop_(loop), timer_(metrics.metrics(), clock, "AttachStore") {}

  // Once, at first: from here on frames come.
  void Start(std::shared_ptr<StoreStream> self) {
    self_ = self;
    stream_ = loop_.AddStream(std::move(self));
  }

  // ---- Of the arbiter's thread ----
  bool Send(v1::AttachStoreResponse frame) override {
    {
      MutexLock lock(&mutex_);
      if (status_.has_value()) return true;
      if (waiting_.size() >= kWaitingMax) return false;
      waiting_.push_back(std::move(frame));
      if (!TakeWrite()) return true;
    }
    StartWrite(&outgoing_);  // alone so far
    return true;
  }
  size_t waiting() const override {
    MutexLock lock(&mutex_);
    return waiting_.size();
  }
  void ReadNext() override {
    {
      MutexLock lock(&mutex_);
      if (status_.has_value()) return;
      // The stream cannot end while a read is about to be started.
      starting_read_ = true;
    }
    StartRead(&incoming_);
    bool finish = false;
    {
      MutexLock lock(&mutex_);
      starting_read_ = false;
      finish = TakeFinish();
    }
    if (finish) SendFinish();
  }
  void Close(const absl::Status& status) override {
    bool finish = false;
    {
      MutexLock lock(&mutex_);
      if (status_.has_value()) return;
      status_ = rpc::ToGrpc(status);
      waiting_.clear();
      finish = TakeFinish();
    }
    if (finish) SendFinish();
  }

  // ---- Of gRPC ----
  void OnReadDone(bool ok) override {
    if (!ok) return loop_.StreamEnded(stream_);
    if (const absl::Status taken = TakeFrame(); !taken.ok()) loop_.Refuse(stream_, taken);
  }
  void OnWriteDone(bool ok) override {
    bool write = false;
    bool finish = false;
    grpc::WriteOptions options;
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      finish = TakeFinish();
      write = ok && !finish && TakeWrite();
      // More follow at once: they may go out together.
      if (!waiting_.empty()) options.set_buffer_hint();
    }
    if (finish) SendFinish();
    if (write) StartWrite(&outgoing_, options);
  }
  void OnCancel() override { loop_.StreamEnded(stream_); }
  void OnDone() override { const std::shared_ptr<StoreStream> self = std::move(self_); }

 private:
  absl::Status TakeFrame() {
    if (!incoming_.status.ok()) return incoming_.status;
    const v1::AttachStoreRequest& frame = incoming_.message;
    if (!said_hello_) {
      if (!frame.has_hello()) return absl::InvalidArgumentError("the first frame is no hello");
      absl::StatusOr<StoreHello> hello = DecodeHello(frame.hello(), stream_);
      if (!hello.ok()) return hello.status();
      said_hello_ = true;
      loop_.Tell(stream_, *std::move(hello));
      return absl::OkStatus();
    }
    if (frame.has_text()) {
      loop_.TellText(stream_, frame.text());
      return absl::OkStatus();
    }
    absl::StatusOr<Command> command = DecodeFrame(frame, stream_);
    if (!command.ok()) return command.status();
    loop_.Tell(stream_, *std::move(command));
    return absl::OkStatus();
  }

  bool TakeWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || status_.has_value() || waiting_.empty()) return false;
    outgoing_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    return true;
  }
  bool TakeFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !writing_ && !starting_read_ && status_.has_value() && !std::exchange(finishing_, true);
  }
  void SendFinish() {
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      status = *status_;
    }
    timer_.Finish(rpc::CodeName(status.error_code()));
    Finish(status);
  }

  ArbiterLoop& loop_;
  metrics::RpcTimer timer_;
  std::shared_ptr<StoreStream> self_;  // gRPC's share, until OnDone
  StreamId stream_{0};
  bool said_hello_ = false;  // of the reads, which do not overlap
  rpc::Parsed<v1::AttachStoreRequest> incoming_;
  v1::AttachStoreResponse outgoing_;  // owned by gRPC while writing_
  mutable Mutex mutex_;
  std::deque<v1::AttachStoreResponse> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerBidiReactor<rpc::Parsed<v1::AttachStoreRequest>, v1::AttachStoreResponse>*
NewStoreStream(ArbiterLoop& loop, MetaMetrics& metrics, const Clock& clock) {
  auto stream = std::make_shared<StoreStream>(loop, metrics, clock);
  stream->Start(stream);
  return stream.get();
}

}  // namespace kvmesh::meta

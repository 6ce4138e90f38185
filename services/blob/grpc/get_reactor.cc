// One Get. While a chunk is being sent, the executor reads and verifies the next ones.
//
// `busy_` marks that an executor thread owns the reading; the call ends when neither it nor a write
// is under way.
#include <deque>
#include <optional>
#include <utility>

#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk_codec.h"
#include "common/rpc/status_bridge.h"
#include "services/blob/grpc/blob_codec.h"
#include "services/blob/grpc/blob_service.h"

namespace kvmesh::blob {
namespace {

constexpr size_t kPrepared = 2;

class GetReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Stallable {
 public:
  GetReactor(ServiceContext& context, grpc::CallbackServerContext* call,
             const grpc::ByteBuffer* request)
      : context_(context),
        call_(call),
        request_(*request),
        timer_(context.metrics.metrics(), context.clock, "Get"),
        progress_(context.clock.Now()) {
    context_.stalls.Watch(this);
    busy_ = true;
    SubmitWork();
  }

  void OnWriteDone(bool ok) override;
  void OnDone() override {
    context_.stalls.Unwatch(this);
    delete this;
  }
  void OnCancel() override {}  // the write under way fails, and that ends the call
  void EndIfStalled(MonoTime oldest) override;

 private:
  void SubmitWork() {
    if (context_.transfers.Submit([this] { Work(); })) return;
    StopReading(BusyStatus("too much work is waiting"));
  }
  void Work();
  // The next message; none: the end.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Produce();
  absl::StatusOr<grpc::ByteBuffer> Open();
  // The busy thread gives up the reading, with the call's status.
  void StopReading(const absl::Status& status);
  void End(const absl::Status& status);

  ServiceContext& context_;
  grpc::CallbackServerContext* call_;
  grpc::ByteBuffer request_;
  metrics::RpcTimer timer_;
  grpc::ByteBuffer outgoing_;  // of the write under way

  std::unique_ptr<OpenGet> get_;  // of the thread that is busy

  Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mutex_);  // at most kPrepared
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  MonoTime progress_ ABSL_GUARDED_BY(mutex_);
};

void GetReactor::Work() {
  while (true) {
    absl::StatusOr<std::optional<grpc::ByteBuffer>> produced = Produce();
    if (!produced.ok() || !produced->has_value()) return StopReading(produced.status());
    bool write = false;
    {
      MutexLock lock(&mutex_);
      if (!status_ && writing_) {
        next_.push_back(*std::move(*produced));
        if (next_.size() < kPrepared) continue;
        busy_ = false;
        return;
      }
      if (!status_) {
        writing_ = write = true;
        progress_ = context_.clock.Now();
        outgoing_ = *std::move(*produced);
      }
    }
    if (!write) return StopReading(absl::CancelledError("the client is gone"));
    StartWrite(&outgoing_);
  }
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> GetReactor::Produce() {
  if (get_ == nullptr) {
    absl::StatusOr<grpc::ByteBuffer> header = Open();
    if (!header.ok()) return header.status();
    return std::optional<grpc::ByteBuffer>(*std::move(header));
  }
  const uint64_t bytes = get_->next_bytes();
  if (bytes == 0) return std::optional<grpc::ByteBuffer>();
  const std::shared_ptr<char[]> data = context_.buffers->Take();
  const absl::Status read = get_->ReadNext(absl::MakeSpan(data.get(), bytes));
  if (!read.ok()) return read;
  context_.metrics.AddBytesGot(bytes);
  return std::optional<grpc::ByteBuffer>(rpc::MakeChunkMessage(data, bytes));
}

absl::StatusOr<grpc::ByteBuffer> GetReactor::Open() {
  v1::GetRequest request;
  KVMESH_RETURN_IF_ERROR(rpc::ParseRequest(&request_, &request));
  const absl::StatusOr<SlabName> name = DecodeName(request.slab());
  if (!name.ok()) return name.status();
  const absl::StatusOr<Selection> selection = DecodeSelection(request);
  if (!selection.ok()) return selection.status();
  absl::StatusOr<std::unique_ptr<OpenGet>> get = context_.store.BeginGet(*name, *selection);
  if (!get.ok()) return get.status();
  get_ = *std::move(get);
  context_.UpdateUsage();
  v1::GetResponse response;
  *response.mutable_header() = EncodeGetHeader(*get_);
  return rpc::SerializeMessage(response);
}

void GetReactor::OnWriteDone(bool ok) {
  bool write = false;
  bool work = false;
  std::optional<absl::Status> end;
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    progress_ = context_.clock.Now();
    if (!ok && !status_) status_ = absl::CancelledError("the client is gone");
    if (!ok) next_.clear();
    if (!next_.empty()) {
      outgoing_ = next_.front();
      next_.pop_front();
      writing_ = write = true;
    }
    if (!busy_ && status_ && !writing_) end = status_;
    if (!busy_ && !status_) busy_ = work = true;
  }
  if (write) StartWrite(&outgoing_);
  if (work) SubmitWork();
  if (end) End(*end);
}

void GetReactor::StopReading(const absl::Status& status) {
  std::optional<absl::Status> end;
  // The slab is let go as soon as its last byte has been read.
  get_.reset();
  {
    MutexLock lock(&mutex_);
    busy_ = false;
    if (!status_) status_ = status;
    if (!writing_) end = status_;
  }
  if (end) End(*end);
}

void GetReactor::EndIfStalled(MonoTime oldest) {
  {
    MutexLock lock(&mutex_);
    if (!writing_ || progress_ > oldest) return;
    progress_ = context_.clock.Now();
  }
  context_.metrics.CountStall();
  call_->TryCancel();
}

void GetReactor::End(const absl::Status& status) {
  get_.reset();
  context_.UpdateUsage();
  const grpc::Status wire = rpc::ToGrpc(status);
  timer_.Finish(rpc::CodeName(wire.error_code()));
  Finish(wire);
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewGetReactor(ServiceContext& context,
                                                          grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer* request) {
  return new GetReactor(context, call, request);
}

}  // namespace kvmesh::blob

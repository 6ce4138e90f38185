// One Put. Messages are read a few ahead: while the executor writes a chunk, the next ones arrive.
//
// `busy_` marks that an executor thread owns the call; only that thread, or whoever finds it not
// busy, ends it.
#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk_codec.h"
#include "common/rpc/status_bridge.h"
#include "services/blob/grpc/blob_codec.h"
#include "services/blob/grpc/blob_service.h"

namespace kvmesh::blob {
namespace {

constexpr size_t kReadAhead = 2;

class PutReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer>, public Stallable {
 public:
  PutReactor(ServiceContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : context_(context),
        call_(call),
        response_(response),
        timer_(context.metrics.metrics(), context.clock, "Put"),
        progress_(context.clock.Now()) {
    context_.stalls.Watch(this);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override;
  void OnDone() override {
    context_.stalls.Unwatch(this);
    delete this;
  }
  void OnCancel() override {}  // the pending read fails, and that ends the call
  void EndIfStalled(MonoTime oldest) override;

 private:
  void SubmitWork() {
    if (context_.transfers.Submit([this] { Work(); })) return;
    End(BusyStatus("too much work is waiting"));
  }
  void Work();
  // What a message, or the end of the stream, leads to. A value ends the call.
  std::optional<absl::Status> Handle(grpc::ByteBuffer* message);
  std::optional<absl::Status> HandleHeader(grpc::ByteBuffer* message);
  std::optional<absl::Status> HandleChunk(const grpc::ByteBuffer& message);
  absl::Status HandleEnd();
  absl::Status Answer(const PutResult& result);
  // The caller owns the call.
  void End(const absl::Status& status);

  ServiceContext& context_;
  grpc::CallbackServerContext* call_;
  grpc::ByteBuffer* response_;
  metrics::RpcTimer timer_;
  grpc::ByteBuffer incoming_;

  // Of the thread that is busy.
  std::unique_ptr<OpenPut> put_;
  std::vector<grpc::Slice> slices_;
  std::vector<absl::string_view> chunk_;

  Mutex mutex_;
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mutex_);  // at most kReadAhead
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool stream_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  MonoTime progress_ ABSL_GUARDED_BY(mutex_);
};

void PutReactor::OnReadDone(bool ok) {
  bool start = false;
  bool read = false;
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    if (ended_) return;
    progress_ = context_.clock.Now();
    if (ok) {
      ready_.push_back(std::move(incoming_));
      incoming_ = grpc::ByteBuffer();
      reading_ = read = ready_.size() < kReadAhead;
    } else {
      stream_ended_ = true;
    }
    start = !busy_;
    busy_ = true;
  }
  if (read) StartRead(&incoming_);
  if (start) SubmitWork();
}

void PutReactor::Work() {
  std::optional<grpc::ByteBuffer> message;
  bool read = false;
  {
    MutexLock lock(&mutex_);
    if (!ready_.empty()) {
      message = std::move(ready_.front());
      ready_.pop_front();
    }
    if (!reading_ && !stream_ended_) reading_ = read = true;
  }
  if (read) StartRead(&incoming_);
  const std::optional<absl::Status> status = message ? Handle(&*message) : HandleEnd();
  if (status) return End(*status);
  {
    MutexLock lock(&mutex_);
    if (ready_.empty() && !stream_ended_) {
      busy_ = false;
      progress_ = context_.clock.Now();
      return;
    }
  }
  // To the end of the queue: a fast sender takes turns with the others.
  SubmitWork();
}

std::optional<absl::Status> PutReactor::Handle(grpc::ByteBuffer* message) {
  if (put_ == nullptr) return HandleHeader(message);
  return HandleChunk(*message);
}

std::optional<absl::Status> PutReactor::HandleHeader(grpc::ByteBuffer* message) {
  v1::PutRequest request;
  KVMESH_RETURN_IF_ERROR(rpc::ParseRequest(message, &request));
  if (!request.has_header()) {
    return absl::InvalidArgumentError("the first message of a Put is its header");
  }
  const absl::StatusOr<PutHeader> header = DecodePutHeader(request.header());
  if (!header.ok()) return header.status();
  absl::StatusOr<SlabStore::BegunPut> begun = context_.store.BeginPut(*header);
  if (!begun.ok()) return begun.status();
  context_.UpdateUsage();
  if (begun->adopted) return Answer(*begun->adopted);
  put_ = std::move(begun->put);
  return std::nullopt;
}

std::optional<absl::Status> PutReactor::HandleChunk(const grpc::ByteBuffer& message) {
  v1::PutRequest parsed;
  if (!rpc::ViewChunk(message, &slices_, &chunk_)) {
    grpc::ByteBuffer copy = message;
    if (!rpc::ParseMessage(&copy, &parsed) || !parsed.has_chunk()) {
      return absl::InvalidArgumentError("a message after the header is no chunk");
    }
    chunk_ = {absl::string_view(parsed.chunk())};
  }
  uint64_t bytes = 0;
  for (absl::string_view part : chunk_) bytes += part.size();
  if (bytes == 0 || bytes > kChunkBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk has ", bytes, " bytes; 1 to ", kChunkBytesMax));
  }
  context_.metrics.AddBytesPut(bytes);
  const absl::Status appended = put_->Append(chunk_);
  if (appended.ok()) return std::nullopt;
  return appended;
}

absl::Status PutReactor::HandleEnd() {
  if (call_->IsCancelled()) return absl::CancelledError("the call was cancelled");
  if (put_ == nullptr) return absl::InvalidArgumentError("a Put without a header");
  absl::StatusOr<PutResult> result = put_->Finish();
  if (!result.ok()) return result.status();
  return Answer(*result);
}

absl::Status PutReactor::Answer(const PutResult& result) {
  v1::PutResponse response;
  *response.mutable_slab() = EncodeInfo(result.info, WallClockSeconds());
  response.set_adopted(result.adopted);
  *response_ = rpc::SerializeMessage(response);
  return absl::OkStatus();
}

void PutReactor::EndIfStalled(MonoTime oldest) {
  absl::Status wanted;
  {
    MutexLock lock(&mutex_);
    if (ended_ || busy_) return;
    // Nobody is busy, so the put is ours to look at.
    if (put_ != nullptr) wanted = put_->CheckWanted();
    if (wanted.ok() && progress_ > oldest) return;
    busy_ = true;
  }
  if (!wanted.ok()) return End(wanted);
  context_.metrics.CountStall();
  End(WithErrorInfo(absl::DeadlineExceededError("no chunk came in time"),
                    ErrorInfo{.reason = "STALLED"}));
}

void PutReactor::End(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    ended_ = true;
  }
  // What the call held is free before its client learns that it ended.
  put_.reset();
  context_.UpdateUsage();
  const grpc::Status wire = rpc::ToGrpc(status);
  timer_.Finish(rpc::CodeName(wire.error_code()));
  Finish(wire);
}

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewPutReactor(ServiceContext& context,
                                                         grpc::CallbackServerContext* call,
                                                         grpc::ByteBuffer* response) {
  return new PutReactor(context, call, response);
}

}  // namespace kvmesh::blob

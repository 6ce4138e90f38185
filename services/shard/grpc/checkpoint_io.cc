#include "services/shard/grpc/checkpoint_io.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "common/rpc/flags.h"
#include "services/shard/core/restore_reader.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kChannelsMax = 64;
constexpr absl::Duration kCancelTimeout = absl::Seconds(1);

void SetSlabId(const Sha256Digest& key, LayerRange layers, const WriteId& write_id,
               v1::SlabId* proto) {
  proto->set_key(key.ToHex());
  proto->mutable_layers()->set_begin(layers.begin);
  proto->mutable_layers()->set_end(layers.end);
  proto->set_write_id(write_id.ToHex());
}

SaveDrop DropOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return SaveDrop::kDeadline;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return SaveDrop::kStoreUnavailable;
    default:
      return SaveDrop::kStoreRefused;
  }
}

SaveDrop ReserveDropOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kCancelled:
      return SaveDrop::kNoArbiter;
    default:
      return SaveDrop::kReserveRefused;
  }
}

SaveDrop BuildDropOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return SaveDrop::kShuttingDown;
    case absl::StatusCode::kResourceExhausted:
      return SaveDrop::kNoMemory;
    default:
      return SaveDrop::kEncodeFailed;
  }
}

// Of an error that the store itself gave.
RestoreFault FaultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return RestoreFault::kNotFound;
    case absl::StatusCode::kDataLoss:
      return RestoreFault::kCorrupt;
    case absl::StatusCode::kInvalidArgument:
      return RestoreFault::kWrongSlab;
    case absl::StatusCode::kFailedPrecondition:
      return RestoreFault::kWrongState;
    case absl::StatusCode::kDeadlineExceeded:
      return RestoreFault::kDeadline;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kPermissionDenied:
      return RestoreFault::kRefused;
    default:
      return RestoreFault::kUnavailable;
  }
}

v1::GetRequest GetRequestOf(const SlabRead& read, uint64_t tokens) {
  v1::GetRequest request;
  SetSlabId(read.slab.key, read.slab.layers, read.slab.write_id, request.mutable_slab());
  request.set_part(v1::GET_PART_LAYERS);
  for (const uint32_t layer : read.layers) {
    v1::LayerSelection& selection = *request.add_layers();
    selection.set_layer(layer);
    selection.set_tokens(static_cast<uint32_t>(tokens));
  }
  return request;
}

}  // namespace

struct CheckpointIo::Restoring {
  RestoreJob job;
  MonoTime begun_at;
  MonoTime deadline;
  SessionState state;  // each read fills layers of its own
  rpc::CallGroup calls;

  Mutex mutex;
  size_t reads_left ABSL_GUARDED_BY(mutex) = 0;
  std::vector<float> last_row ABSL_GUARDED_BY(mutex);
  std::optional<RestoreFailure> failure ABSL_GUARDED_BY(mutex);  // the first one
};

CheckpointIo::CheckpointIo(const CheckpointIoOptions& options, const Clock& clock,
                           const Engine& engine, const Vocabulary& vocabulary, Events events)
    : options_(options),
      clock_(clock),
      engine_(engine),
      vocabulary_(vocabulary),
      events_(std::move(events)),
      meta_(options.meta_address.empty()
                ? nullptr
                : std::make_unique<MetaClient>(options.meta_address, options.tls, saving_)),
      saves_(options.save_threads, options.waiting_max),
      fragments_(options.fragment_threads, options.waiting_max),
      restores_(options.restore_threads, options.waiting_max) {}

void CheckpointIo::Stop() {
  stopping_.store(true);
  saving_.CancelAll();
  {
    MutexLock lock(&mutex_);
    for (const auto& [stream, restoring] : restoring_) restoring->calls.CancelAll();
  }
  saves_.Stop();
  fragments_.Stop();
  restores_.Stop();
}

void CheckpointIo::Save(const std::shared_ptr<SaveJob>& job) {
  const MonoTime deadline = clock_.Now() + job->time_limit;
  const SaveId id = job->id;
  CheckpointQueue& queue = job->fragment() ? fragments_ : saves_;
  const bool taken = queue.Submit([this, job, deadline](bool run) {
    const SaveId id = job->id;
    const std::optional<SaveDrop> drop =
        run ? RunSave(*job, deadline) : std::optional(SaveDrop::kShuttingDown);
    if (drop.has_value()) {
      LOG(INFO) << "a save (" << SaveReasonName(job->reason)
                << ") was dropped: " << SaveDropName(*drop);
    }
    job->snapshot = {};  // its memory is free before the hop counts it so
    events_.save_ended(id, drop);
  });
  if (!taken) {
    events_.save_ended(id, stopping_.load() ? SaveDrop::kShuttingDown : SaveDrop::kBackpressure);
  }
}

// The cause of a save that is dropped; nothing: it is stored.
std::optional<SaveDrop> CheckpointIo::RunSave(SaveJob& job, MonoTime deadline) {
  if (clock_.Now() >= deadline) return SaveDrop::kDeadline;
  if (job.fragment() && meta_ == nullptr) return SaveDrop::kNoArbiter;
  const LayerRange layers = job.snapshot.layers;
  absl::StatusOr<SlabDraft> draft =
      DraftSlab(job.snapshot, job.reason, options_.facts, vocabulary_);
  if (!draft.ok()) return SaveDrop::kEncodeFailed;
  absl::StatusOr<Reservation> place = Reserve(job, *draft, deadline);
  if (!place.ok()) {
    if (saving_.cancelled()) return SaveDrop::kShuttingDown;
    LOG(WARNING) << "no reservation for layers " << layers.begin << ":" << layers.end << ": "
                 << place.status();
    return ReserveDropOf(place.status());
  }
  auto slab =
      BuildSlab(*std::move(draft), std::move(job.snapshot), place->write_id,
                static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now())), options_.facts, stopping_);
  const absl::Status put = slab.ok() ? Put(job, *place, *slab, deadline) : absl::OkStatus();
  if (slab.ok() && put.ok()) return std::nullopt;
  if (job.fragment()) meta_->Cancel(place->write_id, kCancelTimeout);
  if (!slab.ok()) return BuildDropOf(slab.status());
  if (saving_.cancelled()) return SaveDrop::kShuttingDown;
  LOG(WARNING) << "the store at " << place->store_address << " did not take a slab: " << put;
  return DropOf(put);
}

// Where to store it: what the router has reserved, or a place for this slab alone.
absl::StatusOr<Reservation> CheckpointIo::Reserve(const SaveJob& job, const SlabDraft& draft,
                                                  MonoTime deadline) {
  if (!job.fragment()) {
    return Reservation{.write_id = job.write_id, .store_address = job.store_address};
  }
  return meta_->ReserveFragment({.cache_namespace = job.snapshot.cache_namespace,
                                 .key = draft.key,
                                 .layers = job.snapshot.layers,
                                 .model_layers = options_.model_layers,
                                 .file_bytes = draft.file_bytes,
                                 .reason = job.reason},
                                deadline - clock_.Now());
}

absl::Status CheckpointIo::Put(const SaveJob& job, const Reservation& place,
                               const std::shared_ptr<const BuiltSlab>& slab, MonoTime deadline) {
  const absl::Duration left = deadline - clock_.Now();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no time left to send it");
  KVMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                          ChannelTo(place.store_address));
  const slab::SlabMeta& meta = slab->image().meta();
  v1::PutHeader header;
  SetSlabId(meta.key, meta.header.layers, meta.write_id, header.mutable_slab());
  header.set_tokens_sha256(meta.tokens_sha256.bytes().data(), Sha256Digest::kSize);
  header.set_size_bytes(slab->image().size());
  header.set_payload_crc32c(meta.payload_crc32c());
  events_.save_started(job.id);
  return rpc::PutSlab(channel, header, {.parts = slab->image().Parts(), .owner = slab}, left,
                      &saving_, job.trace)
      .status();
}

void CheckpointIo::Restore(RestoreJob job) {
  // Shared by its reads, which end in any order.
  auto restoring = std::make_shared<Restoring>();
  restoring->begun_at = clock_.Now();
  restoring->deadline = restoring->begun_at + job.time_limit;
  restoring->job = std::move(job);
  restoring->state = engine_.NewState();
  const size_t reads = restoring->job.reads.size();
  {
    MutexLock lock(&restoring->mutex);
    restoring->reads_left = reads;
  }
  {
    MutexLock lock(&mutex_);
    restoring_[restoring->job.stream] = restoring;
  }
  for (size_t read = 0; read < reads; ++read) {
    const bool taken =
        restores_.Submit([this, restoring, read](bool run) { RunRead(*restoring, read, run); });
    if (!taken) RunRead(*restoring, read, /*run=*/false);
  }
}

void CheckpointIo::RunRead(Restoring& restoring, size_t read, bool run) {
  std::optional<RestoreFailure> failure;
  if (run) {
    failure = Read(restoring, read);
  } else {
    failure = RestoreFailure{.fault = RestoreFault::kBusy, .detail = "too many restores wait"};
  }
  RestoreResult result;
  {
    MutexLock lock(&restoring.mutex);
    if (failure.has_value() && !restoring.failure.has_value()) restoring.failure = failure;
    if (--restoring.reads_left > 0) return;
    if (restoring.failure.has_value()) {
      result = *std::move(restoring.failure);
    } else {
      result = RestoredState{.state = std::move(restoring.state),
                             .last_row = std::move(restoring.last_row)};
    }
  }
  if (const auto* failed = std::get_if<RestoreFailure>(&result)) {
    LOG(WARNING) << "a restore failed: " << RestoreFaultName(failed->fault) << ": "
                 << failed->detail;
  }
  {
    MutexLock lock(&mutex_);
    restoring_.erase(restoring.job.stream);
  }
  events_.restore_done(restoring.job.stream, std::move(result), clock_.Now() - restoring.begun_at);
}

void CheckpointIo::CancelRestore(StreamId stream) {
  MutexLock lock(&mutex_);
  if (const auto found = restoring_.find(stream); found != restoring_.end()) {
    found->second->calls.CancelAll();
  }
}

std::optional<RestoreFailure> CheckpointIo::Read(Restoring& restoring, size_t read) {
  const RestoreJob& job = restoring.job;
  const SlabRead& wanted = job.reads[read];
  const auto failed = [&](RestoreFault fault, absl::string_view detail) {
    return RestoreFailure{.fault = fault, .detail = std::string(detail), .slab = wanted.slab};
  };
  const absl::Duration left = restoring.deadline - clock_.Now();
  const auto given_up = [&] { return stopping_.load() || restoring.calls.cancelled(); };
  if (given_up()) return failed(RestoreFault::kCancelled, "nobody waits for it any more");
  if (left <= absl::ZeroDuration()) return failed(RestoreFault::kDeadline, "no time left");
  const auto channel = ChannelTo(wanted.slab.store_address);
  if (!channel.ok()) return failed(FaultOf(channel.status()), channel.status().message());
  std::optional<RestoreReader> reader;
  std::optional<RestoreFailure> failure;
  const auto got = rpc::GetSlab(
      *channel, GetRequestOf(wanted, job.tokens.size()), left,
      [&](const v1::GetHeader& header, absl::string_view bytes) -> absl::Status {
        if (!reader.has_value()) {
          reader.emplace(RestoreWant{.read = wanted,
                                     .cache_namespace = job.cache_namespace,
                                     .tokens = job.tokens,
                                     .kv_dtype = options_.facts.kv_dtype,
                                     .vocabulary = vocabulary_,
                                     .state = restoring.state},
                         header.size_bytes());
        }
        failure = reader->Append(bytes);
        return failure.has_value() ? absl::DataLossError("refused") : absl::OkStatus();
      },
      &restoring.calls, job.trace);
  if (failure.has_value()) return failure;
  if (given_up()) return failed(RestoreFault::kCancelled, "nobody waits for it any more");
  if (!got.ok()) return failed(FaultOf(got.status()), got.status().message());
  if (!reader.has_value()) return failed(RestoreFault::kCorrupt, "the answer has no bytes");
  if (failure = reader->Finish(); failure.has_value()) return failure;
  MutexLock lock(&restoring.mutex);
  if (restoring.last_row.empty()) restoring.last_row = reader->LastRow(options_.facts.layers.end);
  return std::nullopt;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> CheckpointIo::ChannelTo(const std::string& address) {
  if (const absl::Status valid = rpc::CheckAddress(address); !valid.ok()) {
    return absl::PermissionDeniedError(absl::StrCat("store_address: ", valid.message()));
  }
  if (!options_.store_allowed(address)) {
    return absl::PermissionDeniedError(
        absl::StrCat("store_address: ", address, " is not among this shard's stores"));
  }
  MutexLock lock(&mutex_);
  if (channels_.size() >= kChannelsMax && channels_.count(address) == 0) channels_.clear();
  std::shared_ptr<grpc::Channel>& channel = channels_[address];
  if (channel == nullptr) {
    channel = rpc::MakeChannel(address, options_.tls, rpc::Role::kBlob);
  }
  return channel;
}

}  // namespace kvmesh::shard

#include "services/blob/grpc/blob_service.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/version.h"
#include "common/rpc/status_bridge.h"
#include "services/blob/grpc/blob_codec.h"

namespace kvmesh::blob {
namespace {

constexpr size_t kQueueMax = 4096;
constexpr size_t kBuffersKept = 4;  // idle ones
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);

// Runs `answer` at once, counts it and ends the call with its status.
template <typename Answer>
grpc::ServerUnaryReactor* AnswerNow(ServiceContext& context, grpc::CallbackServerContext* call,
                                    absl::string_view rpc, const Answer& answer) {
  metrics::RpcTimer timer(context.metrics.metrics(), context.clock, rpc);
  const grpc::Status status = rpc::ToGrpc(answer());
  timer.Finish(rpc::CodeName(status.error_code()));
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

ServiceContext::ServiceContext(const ServiceOptions& service_options, const Clock& service_clock,
                               SlabStore& slab_store, BlobMetrics& blob_metrics)
    : options(service_options),
      clock(service_clock),
      store(slab_store),
      metrics(blob_metrics),
      stalls(service_clock, service_options.stall_timeout),
      pacer(service_clock, service_options.verify_bytes_per_second),
      buffers(std::make_shared<BufferPool>(kBuffersKept)),
      transfers(service_options.io_threads, kQueueMax),
      deletes(2, kQueueMax),
      verifies(1, kQueueMax) {}

uint64_t WallClockSeconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

absl::Status BusyStatus(absl::string_view what) {
  return WithRetryDelay(WithErrorInfo(absl::ResourceExhaustedError(what),
                                      ErrorInfo{.reason = std::string(reason::kQueueFull)}),
                        kRetryDelay);
}

BlobServiceImpl::BlobServiceImpl(ServiceContext& context)
    : CheckedService(context.metrics.metrics(), context.clock), context_(context) {
  CheckUnary("Delete", &BlobServiceImpl::Delete);
  CheckUnary("Stat", &BlobServiceImpl::Stat);
  CheckUnary("List", &BlobServiceImpl::List);
  CheckUnary("GetStats", &BlobServiceImpl::GetStats);
  CheckServerStreaming("Verify", &BlobServiceImpl::Verify);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* BlobServiceImpl::Put(grpc::CallbackServerContext* call,
                                                                grpc::ByteBuffer* response) {
  return NewPutReactor(context_, call, response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* BlobServiceImpl::Get(grpc::CallbackServerContext* call,
                                                                 const grpc::ByteBuffer* request) {
  return NewGetReactor(context_, call, request);
}

grpc::ServerWriteReactor<v1::VerifyResponse>* BlobServiceImpl::Verify(
    grpc::CallbackServerContext* call, const v1::VerifyRequest* request) {
  return NewVerifyReactor(context_, call, request);
}

grpc::ServerUnaryReactor* BlobServiceImpl::Delete(grpc::CallbackServerContext* call,
                                                  const v1::DeleteRequest* request,
                                                  v1::DeleteResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  // Shared by this call's steps on the executor and on the last reader's thread.
  auto timer =
      std::make_shared<metrics::RpcTimer>(context_.metrics.metrics(), context_.clock, "Delete");
  const auto finish = [reactor, timer](const absl::Status& status) {
    const grpc::Status wire = rpc::ToGrpc(status);
    timer->Finish(rpc::CodeName(wire.error_code()));
    reactor->Finish(wire);
  };
  const absl::StatusOr<SlabName> name = DecodeName(request->slab());
  if (!name.ok()) {
    finish(name.status());
    return reactor;
  }
  const bool taken = context_.deletes.Submit([this, slab = *name, response, finish] {
    context_.store.Delete(slab, [this, response, finish](const absl::StatusOr<bool>& removed) {
      if (removed.ok()) response->set_deleted(*removed);
      context_.UpdateUsage();
      finish(removed.status());
    });
  });
  if (!taken) finish(BusyStatus("too many deletes are waiting"));
  return reactor;
}

grpc::ServerUnaryReactor* BlobServiceImpl::Stat(grpc::CallbackServerContext* call,
                                                const v1::StatRequest* request,
                                                v1::StatResponse* response) {
  return AnswerNow(context_, call, "Stat", [&]() -> absl::Status {
    const absl::StatusOr<SlabName> name = DecodeName(request->slab());
    if (!name.ok()) return name.status();
    const absl::StatusOr<SlabInfo> info = context_.store.Stat(*name);
    if (!info.ok()) return info.status();
    *response->mutable_slab() = EncodeInfo(*info, WallClockSeconds());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* BlobServiceImpl::List(grpc::CallbackServerContext* call,
                                                const v1::ListRequest* request,
                                                v1::ListResponse* response) {
  return AnswerNow(context_, call, "List", [&]() -> absl::Status {
    const absl::StatusOr<Page> page = DecodePage(*request);
    if (!page.ok()) return page.status();
    const Listing listing = context_.store.List(page->after, page->size);
    const uint64_t now_s = WallClockSeconds();
    for (const SlabInfo& info : listing.slabs) *response->add_slabs() = EncodeInfo(info, now_s);
    if (!listing.complete) {
      response->set_next_page_token(listing.slabs.back().name.ToFileName());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* BlobServiceImpl::GetStats(grpc::CallbackServerContext* call,
                                                    const v1::BlobServiceGetStatsRequest* request,
                                                    v1::BlobServiceGetStatsResponse* response) {
  return AnswerNow(context_, call, "GetStats", [&] {
    const Usage usage = context_.store.usage();
    response->set_tier(context_.options.tier);
    response->set_budget_bytes(usage.budget_bytes);
    response->set_used_bytes(usage.used_bytes);
    response->set_in_flight_bytes(usage.in_flight_bytes);
    response->set_quarantined_bytes(usage.quarantined_bytes);
    response->set_slabs(usage.slabs);
    response->set_transfers(context_.store.transfers());
    response->set_transfers_max(context_.options.transfers_max);
    response->set_slabs_quarantined(context_.metrics.quarantined());
    const StartupReport& report = context_.store.startup_report();
    response->mutable_startup_removed()->insert(report.removed.begin(), report.removed.end());
    response->mutable_startup_quarantined()->insert(report.quarantined.begin(),
                                                    report.quarantined.end());
    response->set_version(kVersion);
    return absl::OkStatus();
  });
}

}  // namespace kvmesh::blob

#include "tools/kvmesh/pump.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/rpc/status_bridge.h"
#include "pump/pump.grpc.pb.h"

namespace kvmesh::bench {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;
constexpr std::chrono::minutes kTimeout{10};

class PumpServiceImpl final : public PumpService::Service {
 public:
  grpc::Status Pump(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<PumpResponse, PumpRequest>* stream) override {
    PumpRequest request;
    PumpResponse response;
    uint64_t got = 0;
    uint64_t want = 0;
    while (stream->Read(&request)) {
      got += request.chunk().size();
      want = request.want_bytes();
    }
    response.mutable_chunk()->assign(kChunkBytes, 'p');
    for (uint64_t sent = 0; sent < want && stream->Write(response);) {
      sent += std::min(kChunkBytes, want - sent);
      if (want - sent < kChunkBytes) response.mutable_chunk()->resize(want - sent);
    }
    response.clear_chunk();
    response.set_got_bytes(got);
    stream->Write(response);
    return grpc::Status::OK;
  }
};

absl::Status Lost(uint64_t wanted, uint64_t got) {
  return absl::DataLossError(absl::StrCat("the pump moved ", got, " of ", wanted, " bytes"));
}

}  // namespace

absl::Status ServePump(const std::string& ready_file) {
  PumpServiceImpl pump;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  // Idle clients ping every kKeepalive; the default of 300 s would turn them away.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(limits::kKeepalive)) / 4);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&pump);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError("the pump cannot listen");
  const std::string partial = ready_file + ".tmp";
  std::ofstream(partial) << "{\"address\": \"127.0.0.1:" << port << "\"}";
  if (std::rename(partial.c_str(), ready_file.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", ready_file));
  }
  server->Wait();
  return absl::UnavailableError("the pump's server has ended");
}

absl::Status PumpTo(const std::shared_ptr<grpc::Channel>& channel, const std::string& chunk,
                    uint64_t bytes) {
  const auto stub = PumpService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_chunk(chunk);
  uint64_t sent = 0;
  while (sent < bytes && stream->Write(request)) sent += chunk.size();
  stream->WritesDone();
  PumpResponse response;
  const bool answered = stream->Read(&response);
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return rpc::FromGrpc(status);
  if (!answered || response.got_bytes() < bytes) return Lost(bytes, response.got_bytes());
  return absl::OkStatus();
}

absl::Status PumpFrom(const std::shared_ptr<grpc::Channel>& channel, uint64_t bytes) {
  const auto stub = PumpService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_want_bytes(bytes);
  stream->WriteLast(request, grpc::WriteOptions());
  PumpResponse response;
  uint64_t got = 0;
  while (stream->Read(&response)) got += response.chunk().size();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return rpc::FromGrpc(status);
  return got < bytes ? Lost(bytes, got) : absl::OkStatus();
}

}  // namespace kvmesh::bench

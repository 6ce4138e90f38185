#include "tests/bench/blob/pump.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "common/base/limits.h"
#include "pump/pump.grpc.pb.h"

namespace kvmesh::bench {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;

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
    for (uint64_t sent = 0; sent < want; sent += kChunkBytes) stream->Write(response);
    response.clear_chunk();
    response.set_got_bytes(got);
    stream->Write(response);
    return grpc::Status::OK;
  }
};

void Must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "pump: %s\n", what);
  std::exit(1);
}

}  // namespace

void ServePump(const std::string& ready_file) {
  PumpServiceImpl pump;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&pump);
  const auto server = builder.BuildAndStart();
  Must(server != nullptr, "cannot listen");
  std::ofstream(ready_file + ".tmp") << "{\"address\": \"127.0.0.1:" << port << "\"}";
  std::rename((ready_file + ".tmp").c_str(), ready_file.c_str());
  server->Wait();
}

void PumpTo(const std::shared_ptr<grpc::Channel>& channel, const std::string& chunk,
            uint64_t bytes) {
  const auto stub = PumpService::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_chunk(chunk);
  for (uint64_t sent = 0; sent < bytes; sent += chunk.size()) stream->Write(request);
  stream->WritesDone();
  PumpResponse response;
  Must(stream->Read(&response) && response.got_bytes() >= bytes, "bytes were lost");
  Must(stream->Finish().ok(), "failed");
}

void PumpFrom(const std::shared_ptr<grpc::Channel>& channel, uint64_t bytes) {
  const auto stub = PumpService::NewStub(channel);
  grpc::ClientContext context;
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_want_bytes(bytes);
  stream->WriteLast(request, grpc::WriteOptions());
  PumpResponse response;
  uint64_t got = 0;
  while (stream->Read(&response)) got += response.chunk().size();
  Must(stream->Finish().ok() && got >= bytes, "bytes were lost");
}

}  // namespace kvmesh::bench

#include "tests/bench/blob/pump.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "common/base/limits.h"
#include "common/rpc/channel.h"
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

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Connected before the clock starts.
std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  std::shared_ptr<grpc::Channel> channel = rpc::MakeChannel(address);
  channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60));
  return channel;
}

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

double PumpTo(const std::string& address, const std::string& chunk, uint64_t bytes) {
  const auto stub = PumpService::NewStub(Connect(address));
  const auto start = std::chrono::steady_clock::now();
  grpc::ClientContext context;
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_chunk(chunk);
  for (uint64_t sent = 0; sent < bytes; sent += chunk.size()) stream->Write(request);
  stream->WritesDone();
  PumpResponse response;
  Must(stream->Read(&response) && response.got_bytes() >= bytes, "bytes were lost");
  Must(stream->Finish().ok(), "failed");
  return SecondsSince(start);
}

double PumpFrom(const std::string& address, uint64_t bytes) {
  const auto stub = PumpService::NewStub(Connect(address));
  const auto start = std::chrono::steady_clock::now();
  grpc::ClientContext context;
  const auto stream = stub->Pump(&context);
  PumpRequest request;
  request.set_want_bytes(bytes);
  stream->WriteLast(request, grpc::WriteOptions());
  PumpResponse response;
  uint64_t got = 0;
  while (stream->Read(&response)) got += response.chunk().size();
  Must(stream->Finish().ok() && got >= bytes, "bytes were lost");
  return SecondsSince(start);
}

}  // namespace kvmesh::bench

#include "tests/bench/meta/echo.h"

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/base/limits.h"
#include "common/base/sha256.h"
#include "echo/echo.grpc.pb.h"

namespace kvmesh::bench {
namespace {

// A hit of a row of two slabs.
kvmesh::v1::LookupResponse TypicalResponse() {
  const std::string key(64, 'k');
  const std::string write_id(32, 'w');
  kvmesh::v1::LookupResponse response;
  response.set_found(true);
  response.set_key(key);
  response.set_token_count(1234);
  response.set_text_bytes(4936);
  kvmesh::v1::RowInfo& row = *response.mutable_row();
  row.set_key(key);
  row.set_write_id(write_id);
  row.set_tokens_sha256(std::string(32, 't'));
  row.set_token_count(1300);
  for (const uint32_t begin : {0U, 15U}) {
    kvmesh::v1::SlabPlace& place = *row.add_slabs();
    place.mutable_slab()->set_key(key);
    place.mutable_slab()->mutable_layers()->set_begin(begin);
    place.mutable_slab()->mutable_layers()->set_end(begin + 15);
    place.mutable_slab()->set_write_id(write_id);
    place.set_address("127.0.0.1:7001");
    place.set_tier("disk");
    place.set_size_bytes(4 << 20);
  }
  return response;
}

class EchoServiceImpl final : public v1::EchoService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const kvmesh::v1::LookupRequest* /*request*/,
                                 kvmesh::v1::LookupResponse* response) override {
    *response = response_;
    return Done(context);
  }
  grpc::ServerUnaryReactor* HashAndEcho(grpc::CallbackServerContext* context,
                                        const kvmesh::v1::LookupRequest* request,
                                        kvmesh::v1::LookupResponse* response) override {
    *response = response_;
    response->mutable_row()->set_tokens_sha256(std::string(Sha256Of(request->text()).bytes()));
    return Done(context);
  }

 private:
  static grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  const kvmesh::v1::LookupResponse response_ = TypicalResponse();
};

}  // namespace

void ServeEcho(const std::string& ready_file) {
  EchoServiceImpl echo;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "echo: cannot listen\n");
    std::exit(1);
  }
  std::ofstream(ready_file + ".tmp") << "{\"address\": \"127.0.0.1:" << port << "\"}";
  std::rename((ready_file + ".tmp").c_str(), ready_file.c_str());
  server->Wait();
}

}  // namespace kvmesh::bench

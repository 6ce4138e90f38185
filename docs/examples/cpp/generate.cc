// Continues a text on a kvmesh and prints the answer as it comes:
//   generate ROUTER PROMPT
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "kvmesh/v1/router.grpc.pb.h"

namespace {

int Generate(kvmesh::v1::RouterService::Stub& router, const std::string& prompt) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  kvmesh::v1::GenerateRequest request;
  request.set_text(prompt);
  request.set_add_special_tokens(true);
  request.mutable_options()->set_max_tokens(32);
  const auto answer = router.Generate(&context, request);
  kvmesh::v1::GenerateResponse event;
  while (answer->Read(&event)) {
    if (event.has_delta()) std::printf("%s", event.delta().text().c_str());
    if (event.has_finished()) {
      std::fprintf(stderr, "\n%u tokens, %u of the prompt's %u from a checkpoint\n",
                   event.finished().usage().completion_tokens(),
                   event.finished().usage().cached_tokens(),
                   event.finished().usage().prompt_tokens());
    }
  }
  const grpc::Status status = answer->Finish();
  if (status.ok()) return 0;
  std::fprintf(stderr, "error %d: %s\n", status.error_code(), status.error_message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate ROUTER PROMPT\n");
    return 2;
  }
  const auto router = kvmesh::v1::RouterService::NewStub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  return Generate(*router, argv[2]);
}

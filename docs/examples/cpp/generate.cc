// Continues a text on a kvmesh and prints the answer as it comes:
//   generate ROUTER PROMPT [--tls-dir DIR] [--token-file FILE]
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "kvmesh/v1/router.grpc.pb.h"

namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::shared_ptr<grpc::Channel> Connect(const std::string& router, const std::string& tls_dir) {
  if (tls_dir.empty()) return grpc::CreateChannel(router, grpc::InsecureChannelCredentials());
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = ReadFile(tls_dir + "/ca.crt");
  tls.pem_cert_chain = ReadFile(tls_dir + "/tls.crt");
  tls.pem_private_key = ReadFile(tls_dir + "/tls.key");
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("router.kvmesh");  // what a router's certificate is called
  return grpc::CreateCustomChannel(router, grpc::SslCredentials(tls), arguments);
}

int Generate(kvmesh::v1::RouterService::Stub& router, const std::string& prompt,
             const std::string& token) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
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
  std::string tls_dir;
  std::string token;
  bool good = argc >= 3 && argc % 2 == 1;
  for (int i = 3; good && i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--tls-dir") {
      tls_dir = argv[i + 1];
    } else if (flag == "--token-file") {
      token = ReadFile(argv[i + 1]);
      token.erase(token.find_last_not_of("\r\n ") + 1);
    } else {
      good = false;
    }
  }
  if (!good) {
    std::fprintf(stderr, "usage: generate ROUTER PROMPT [--tls-dir DIR] [--token-file FILE]\n");
    return 2;
  }
  const auto router = kvmesh::v1::RouterService::NewStub(Connect(argv[1], tls_dir));
  return Generate(*router, argv[2], token);
}

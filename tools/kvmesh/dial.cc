#include "tools/kvmesh/dial.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/small_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/tls_identity.h"

namespace kvmesh::cli {
namespace {

struct Dialling {
  std::shared_ptr<rpc::TlsIdentity> tls;
  std::string token;
};

Dialling& Current() {
  static auto* dialling = new Dialling();
  return *dialling;
}

// Adds the token to every call. Not gRPC's own call credentials: those refuse plaintext, which a
// mesh on one machine uses.
class TokenAdder final : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", "Bearer " + Current().token});
    }
    methods->Proceed();
  }
};

class TokenAdderFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* /*info*/) override {
    return new TokenAdder();
  }
};

}  // namespace

absl::Status UseCredentials(const Credentials& credentials) {
  Dialling& dialling = Current();
  if (!credentials.tls_folder.empty()) {
    absl::StatusOr<std::shared_ptr<rpc::TlsIdentity>> tls =
        rpc::TlsIdentity::Load({.folder = credentials.tls_folder,
                                .own = rpc::Roles{rpc::Role::kClient, rpc::Role::kOperator}});
    if (!tls.ok()) {
      return absl::Status(tls.status().code(), absl::StrCat("--tls-dir: ", tls.status().message()));
    }
    dialling.tls = *std::move(tls);
  }
  if (!credentials.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadSmallFile(credentials.token_file);
    if (!token.ok()) {
      return absl::Status(token.status().code(),
                          absl::StrCat("--token-file: ", token.status().message()));
    }
    dialling.token = std::string(absl::StripAsciiWhitespace(*token));
    for (const char c : dialling.token) {
      if (c > 0x20 && c < 0x7f) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--token-file: ", credentials.token_file, " is not one token"));
    }
    if (dialling.token.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--token-file: ", credentials.token_file, " is empty"));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address, rpc::Role role) {
  const Dialling& dialling = Current();
  // The token is for routers alone: nobody else should ever see it.
  if (role != rpc::Role::kRouter || dialling.token.empty()) {
    return rpc::MakeChannel(address, dialling.tls, role);
  }
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> adders;
  adders.push_back(std::make_unique<TokenAdderFactory>());
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, rpc::CredentialsFor(dialling.tls, role),
      rpc::MakeChannelArguments(dialling.tls, role), std::move(adders));
}

}  // namespace kvmesh::cli

// How this command line reaches the services: plaintext, or with the certificate of --tls-dir; with
// the token of --token-file where it speaks to a router. One setting for the whole program, made by
// its main before the first channel.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/role.h"

namespace kvmesh::cli {

struct Credentials {
  std::string tls_folder;  // empty: plaintext
  std::string token_file;  // empty: no token
};

// NotFound, InvalidArgument: a file is missing or wrong; the flag and the path are named.
absl::Status UseCredentials(const Credentials& credentials);

// A channel to a service of this role.
std::shared_ptr<grpc::Channel> Dial(const std::string& address, rpc::Role role);

}  // namespace kvmesh::cli

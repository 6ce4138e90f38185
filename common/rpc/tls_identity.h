// What one process shows its peers, and what it demands of them: mutual TLS 1.3 with certificates
// that name roles. Files are read again when they change, so a renewed certificate or another
// authority takes effect at the next handshake, without a restart; connections that stand, stand.
//
// Thread-safe. Shared by servers and channels, which gRPC keeps alive as it likes. Make it after
// the signals are blocked and before the first channel or server of the process.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/peer_check.h"
#include "common/rpc/role.h"

namespace grpc::experimental {
class FileWatcherCertificateProvider;
}

namespace kvmesh::rpc {

struct TlsOptions {
  std::string folder;  // with tls.crt (a chain may follow in it), tls.key, ca.crt
  Roles own;           // the certificate must name one of them
  Roles callers;       // who may call this process
};

class TlsIdentity {
 public:
  // Checks the files: NotFound names the one that cannot be read; InvalidArgument says what is
  // wrong with it, or that the certificate does not say that its holder is one of `own`.
  static absl::StatusOr<std::shared_ptr<TlsIdentity>> Load(const TlsOptions& options);
  ~TlsIdentity();

  std::shared_ptr<grpc::ServerCredentials> ForServer();
  // For channels to peers that must be a `server`.
  std::shared_ptr<grpc::ChannelCredentials> ForChannel(Role server);

  // Refused peers are counted there from now on, those of before included, as
  // peers_refused_total{side, reason}; `side` is that of the refused peer.
  void CountIn(metrics::Metrics& metrics);

  const Roles& callers() const { return options_.callers; }

 private:
  class Verifier;
  using Watcher = grpc::experimental::FileWatcherCertificateProvider;

  TlsIdentity(TlsOptions options, std::unique_ptr<RootsFile> roots);
  template <typename Options>
  void Fill(Options& options, PeerSide peers, Roles allowed);

  struct Refusals;

  const TlsOptions options_;
  // Shared with the verifiers, which gRPC may keep longer than this object lives.
  const std::shared_ptr<RootsFile> roots_;
  const std::shared_ptr<Refusals> refusals_;
  const std::shared_ptr<Watcher> watcher_;
  Mutex mutex_;
  std::map<Role, std::shared_ptr<grpc::ChannelCredentials>> channels_ ABSL_GUARDED_BY(mutex_);
};

// What the peer of a call is, by the certificate that this process has checked. None: plaintext, or
// no certificate.
Roles RolesOfPeer(const grpc::AuthContext& context);

}  // namespace kvmesh::rpc

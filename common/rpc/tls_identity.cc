#include "common/rpc/tls_identity.h"

#include <glog/logging.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/small_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/method_roles.h"

namespace kvmesh::rpc {
namespace {

constexpr unsigned kRefreshSeconds = 1;

absl::string_view ToView(grpc::string_ref text) {
  return {text.data(), text.size()};
}

std::string SideName(PeerSide side) {
  return side == PeerSide::kServer ? "server" : "client";
}

// gRPC 1.51 has no setting for the least TLS version, and takes 1.2. It has one for the ciphers of
// TLS 1.2, and this one needs a shared key that nobody here has: what is left is 1.3. Read once by
// gRPC, at the first handshake.
void DemandTls13() {
  setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
}

// What gRPC asks at the start of each call: a peer that got in may still call what is not its own.
class MethodGuard final : public grpc::AuthMetadataProcessor {
 public:
  explicit MethodGuard(std::function<void()> count) : count_(std::move(count)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* peer,
                       OutputMetadata* /*consumed*/, OutputMetadata* /*response*/) override {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return grpc::Status(grpc::StatusCode::INTERNAL, "no method");
    const absl::string_view method = ToView(path->second);
    const std::optional<Roles> callers = CallersOfMethod(method);
    const Roles roles = RolesOfPeer(*peer);
    if (!callers.has_value() || roles.Meets(*callers)) return grpc::Status::OK;
    count_();
    const std::string why = absl::StrCat(method, " is for the roles ", callers->ToString(),
                                         "; the caller's certificate names ", roles.ToString());
    LOG_EVERY_T(WARNING, 1) << "refused a call: " << why;
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, why);
  }

 private:
  const std::function<void()> count_;  // of each refusal
};

}  // namespace

// Counts refused peers, here until there are metrics, then there.
struct TlsIdentity::Refusals {
  void Add(PeerSide side, PeerFault fault) {
    MutexLock lock(&mutex);
    Cell& cell = cells[static_cast<size_t>(side)][static_cast<size_t>(fault)];
    ++cell.count;
    if (cell.counter != nullptr) cell.counter->Increment();
  }

  struct Cell {
    double count = 0;
    prometheus::Counter* counter = nullptr;
  };
  Mutex mutex;
  std::array<std::array<Cell, kPeerFaultCount>, 2> cells ABSL_GUARDED_BY(mutex);
  // Keeps the counters alive for handshakes that outlast the service.
  std::shared_ptr<prometheus::Registry> registry ABSL_GUARDED_BY(mutex);
};

// What gRPC asks at the end of each handshake.
class TlsIdentity::Verifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  Verifier(std::shared_ptr<RootsFile> roots, std::shared_ptr<Refusals> refusals, PeerSide peers,
           Roles allowed)
      : roots_(std::move(roots)),
        refusals_(std::move(refusals)),
        peers_(peers),
        allowed_(allowed) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)> /*callback*/, grpc::Status* status) override {
    const PeerVerdict verdict = CheckPeer(
        {.leaf = ToView(request->peer_cert()), .chain = ToView(request->peer_cert_full_chain())},
        peers_, *roots_->Get(), allowed_, absl::Now());
    if (verdict.fault == PeerFault::kNone) {
      *status = grpc::Status::OK;
      return true;
    }
    refusals_->Add(peers_, verdict.fault);
    const std::string why = absl::StrCat("refused a ", SideName(peers_), ": ",
                                         PeerFaultName(verdict.fault), ": ", verdict.detail);
    LOG_EVERY_T(WARNING, 1) << why;
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, why);
    return true;
  }

  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const std::shared_ptr<RootsFile> roots_;
  const std::shared_ptr<Refusals> refusals_;
  const PeerSide peers_;
  const Roles allowed_;
};

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Load(const TlsOptions& options) {
  const std::string certificate_path = options.folder + "/tls.crt";
  const std::string key_path = options.folder + "/tls.key";
  KVMESH_ASSIGN_OR_RETURN(const std::string certificate, ReadSmallFile(certificate_path));
  KVMESH_ASSIGN_OR_RETURN(const std::string key, ReadSmallFile(key_path));
  const absl::StatusOr<Roles> roles = RolesOfCertificate(certificate);
  if (!roles.ok()) return InFile(certificate_path, roles.status());
  if (!roles->Meets(options.own)) {
    return absl::InvalidArgumentError(
        absl::StrCat(certificate_path, " names the role ", roles->ToString(), ", not ",
                     options.own.ToString(), " (as a URI like ", RoleUri(Role::kRouter), ")"));
  }
  if (absl::Status pair = CheckKeyPair(certificate, key); !pair.ok()) {
    return InFile(key_path, pair);
  }
  KVMESH_ASSIGN_OR_RETURN(std::unique_ptr<RootsFile> roots,
                          RootsFile::Open(options.folder + "/ca.crt"));
  DemandTls13();
  return std::shared_ptr<TlsIdentity>(new TlsIdentity(options, std::move(roots)));
}

TlsIdentity::TlsIdentity(TlsOptions options, std::unique_ptr<RootsFile> roots)
    : options_(std::move(options)),
      roots_(std::move(roots)),
      refusals_(std::make_shared<Refusals>()),
      watcher_(std::make_shared<Watcher>(options_.folder + "/tls.key", options_.folder + "/tls.crt",
                                         options_.folder + "/ca.crt", kRefreshSeconds)) {}

TlsIdentity::~TlsIdentity() = default;

template <typename Options>
void TlsIdentity::Fill(Options& options, PeerSide peers, Roles allowed) {
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<Verifier>(roots_, refusals_, peers,
                                                                        allowed));
}

std::shared_ptr<grpc::ServerCredentials> TlsIdentity::ForServer() {
  grpc::experimental::TlsServerCredentialsOptions options(watcher_);
  // gRPC neither demands nor verifies one; the verifier does both, and counts (peer_check.h).
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  Fill(options, PeerSide::kClient, options_.callers);
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<MethodGuard>(
      [refusals = refusals_] { refusals->Add(PeerSide::kClient, PeerFault::kWrongRole); }));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> TlsIdentity::ForChannel(Role server) {
  MutexLock lock(&mutex_);
  std::shared_ptr<grpc::ChannelCredentials>& credentials = channels_[server];
  if (credentials == nullptr) {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(watcher_);
    options.set_verify_server_certs(false);  // the verifier does
    Fill(options, PeerSide::kServer, {server});
    credentials = grpc::experimental::TlsCredentials(options);
  }
  return credentials;
}

Roles RolesOfPeer(const grpc::AuthContext& context) {
  Roles roles;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const std::optional<Role> role = RoleOfUri(ToView(uri));
    if (role.has_value()) roles.Add(*role);
  }
  return roles;
}

void TlsIdentity::CountIn(metrics::Metrics& metrics) {
  MutexLock lock(&refusals_->mutex);
  refusals_->registry = metrics.registry();
  for (const PeerSide side : {PeerSide::kServer, PeerSide::kClient}) {
    for (size_t fault = 1; fault < kPeerFaultCount; ++fault) {
      Refusals::Cell& cell = refusals_->cells[static_cast<size_t>(side)][fault];
      cell.counter = &metrics.Counter(
          "peers_refused_total", "TLS peers turned away at the handshake, by side and reason",
          {{"side", SideName(side)},
           {"reason", std::string(PeerFaultName(static_cast<PeerFault>(fault)))}});
      cell.counter->Increment(cell.count);
    }
  }
}

}  // namespace kvmesh::rpc

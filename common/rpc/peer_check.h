// Whether a peer's certificate is good, and what it says that the peer is. OpenSSL checks the
// chain; gRPC could have it do so too, but would drop the peer without telling why, and a refusal
// that nobody can count or explain is one that nobody notices.
//
// Pure but for the files behind RootsFile.
#pragma once

#include <openssl/x509.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/small_file.h"
#include "common/rpc/role.h"

namespace kvmesh::rpc {

enum class PeerFault : uint8_t {
  kNone,
  kNoCertificate,
  kUnreadable,        // not PEM, or more certificates than a chain has
  kUnknownAuthority,  // no chain to one of our roots
  kExpired,
  kNotYetValid,
  kBadCertificate,  // another fault of the chain: purpose, weak key, …
  kNoRole,          // a good certificate that names no role of ours
  kWrongRole        // of a role that has no business here
};
constexpr size_t kPeerFaultCount = 9;
// As in metrics: "no_certificate", …
absl::string_view PeerFaultName(PeerFault fault);

struct PeerVerdict {
  PeerFault fault = PeerFault::kNone;
  std::string detail;  // for the log: what was found, and what is wanted
};

enum class PeerSide : uint8_t { kServer, kClient };

using StorePtr = std::shared_ptr<X509_STORE>;  // shared with the checks under way

// InvalidArgument: no certificate in `pem`, or one that cannot be read.
absl::StatusOr<StorePtr> ReadRoots(absl::string_view pem);

// The roles that the first certificate of `pem` names. InvalidArgument: it cannot be read.
absl::StatusOr<Roles> RolesOfCertificate(absl::string_view pem);

// InvalidArgument: one of the two cannot be read, or they do not belong together.
absl::Status CheckKeyPair(absl::string_view certificate_pem, absl::string_view key_pem);

struct PeerPem {
  absl::string_view leaf;   // empty: the peer showed none
  absl::string_view chain;  // all that it showed
};

// What to make of a peer on that `side` of a connection. It is welcome with any role of `allowed`;
// without a certificate if that has Role::kAnonymous.
PeerVerdict CheckPeer(const PeerPem& peer, PeerSide side, X509_STORE& roots, Roles allowed,
                      absl::Time now);

// The roots in a file, read again whenever the file has changed. What cannot be read any more is
// logged, and the roots before it stay. Thread-safe.
class RootsFile {
 public:
  // NotFound, InvalidArgument (no certificates in it): with the path.
  static absl::StatusOr<std::unique_ptr<RootsFile>> Open(const std::string& path);
  StorePtr Get();

 private:
  explicit RootsFile(std::string path) : path_(std::move(path)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);
  StorePtr roots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::rpc

#include "common/rpc/peer_check.h"

#include <glog/logging.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace kvmesh::rpc {
namespace {

constexpr size_t kChainMax = 16;    // certificates
constexpr size_t kRootsMax = 1024;  // certificates
constexpr int kSecurityLevel = 2;   // of OpenSSL: 112 bits, so no RSA below 2048 and no SHA-1

struct Free {
  void operator()(X509* x) const { X509_free(x); }
  void operator()(X509_STORE_CTX* x) const { X509_STORE_CTX_free(x); }
  void operator()(BIO* x) const { BIO_free(x); }
  void operator()(EVP_PKEY* x) const { EVP_PKEY_free(x); }
  void operator()(GENERAL_NAMES* x) const { GENERAL_NAMES_free(x); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;
using Certificates = std::vector<Owned<X509>>;

Owned<BIO> Reader(absl::string_view text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Every certificate in `pem`. InvalidArgument: none, more than `max`, or one that is broken.
absl::StatusOr<Certificates> ReadCertificates(absl::string_view pem, size_t max) {
  Certificates certificates;
  if (pem.size() > kSmallFileBytesMax)
    return absl::InvalidArgumentError("above 1 MiB of certificates");
  const Owned<BIO> in = Reader(pem);
  for (;;) {
    Owned<X509> next(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) break;
    if (certificates.size() == max) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", max, " certificates"));
    }
    certificates.push_back(std::move(next));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end) return absl::InvalidArgumentError("a certificate that cannot be read");
  if (certificates.empty()) return absl::InvalidArgumentError("no certificate in PEM form");
  return certificates;
}

Roles RolesOf(X509& certificate) {
  Roles roles;
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return roles;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME& name = *sk_GENERAL_NAME_value(names.get(), i);
    if (name.type != GEN_URI) continue;
    const ASN1_IA5STRING& uri = *name.d.uniformResourceIdentifier;
    const std::optional<Role> role =
        RoleOfUri({reinterpret_cast<const char*>(ASN1_STRING_get0_data(&uri)),
                   static_cast<size_t>(ASN1_STRING_length(&uri))});
    if (role.has_value()) roles.Add(*role);
  }
  return roles;
}

PeerFault FaultOf(int x509_error) {
  switch (x509_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return PeerFault::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return PeerFault::kNotYetValid;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_UNTRUSTED:
      return PeerFault::kUnknownAuthority;
    default:
      return PeerFault::kBadCertificate;
  }
}

PeerVerdict CheckChain(X509& leaf, const Certificates& chain, PeerSide side, X509_STORE& roots,
                       absl::Time now) {
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> others(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  for (const Owned<X509>& each : chain) sk_X509_push(others.get(), each.get());
  const Owned<X509_STORE_CTX> check(X509_STORE_CTX_new());
  if (others == nullptr || check == nullptr ||
      X509_STORE_CTX_init(check.get(), &roots, &leaf, others.get()) != 1) {
    return {PeerFault::kBadCertificate, "OpenSSL cannot begin the check"};
  }
  X509_STORE_CTX_set_purpose(
      check.get(), side == PeerSide::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  X509_VERIFY_PARAM* param = X509_STORE_CTX_get0_param(check.get());
  X509_VERIFY_PARAM_set_time(param, absl::ToTimeT(now));
  X509_VERIFY_PARAM_set_auth_level(param, kSecurityLevel);
  X509_VERIFY_PARAM_set_depth(param, static_cast<int>(kChainMax));
  const bool good = X509_verify_cert(check.get()) == 1;
  const int error = X509_STORE_CTX_get_error(check.get());
  ERR_clear_error();
  if (good && error == X509_V_OK) return {};
  return {FaultOf(error), X509_verify_cert_error_string(error)};
}

}  // namespace

absl::string_view PeerFaultName(PeerFault fault) {
  static constexpr std::array<absl::string_view, kPeerFaultCount> kNames = {
      "none",          "no_certificate",  "unreadable", "unknown_authority", "expired",
      "not_yet_valid", "bad_certificate", "no_role",    "wrong_role"};
  return kNames[static_cast<size_t>(fault)];
}

absl::StatusOr<StorePtr> ReadRoots(absl::string_view pem) {
  KVMESH_ASSIGN_OR_RETURN(const Certificates certificates, ReadCertificates(pem, kRootsMax));
  StorePtr store(X509_STORE_new(), X509_STORE_free);
  for (const Owned<X509>& each : certificates) X509_STORE_add_cert(store.get(), each.get());
  return store;
}

absl::StatusOr<Roles> RolesOfCertificate(absl::string_view pem) {
  KVMESH_ASSIGN_OR_RETURN(const Certificates certificates, ReadCertificates(pem, kChainMax));
  return RolesOf(*certificates.front());
}

absl::Status CheckKeyPair(absl::string_view certificate_pem, absl::string_view key_pem) {
  KVMESH_ASSIGN_OR_RETURN(const Certificates certificates,
                          ReadCertificates(certificate_pem, kChainMax));
  // Without a passphrase: nobody could be asked for one.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Owned<BIO> in = Reader(key_pem);
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(in.get(), nullptr, no_passphrase, nullptr));
  const bool match =
      key != nullptr && X509_check_private_key(certificates.front().get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError("no private key in PEM form without a passphrase");
  }
  if (!match) return absl::InvalidArgumentError("the private key is not the certificate's");
  return absl::OkStatus();
}

PeerVerdict CheckPeer(const PeerPem& peer, PeerSide side, X509_STORE& roots, Roles allowed,
                      absl::Time now) {
  if (peer.leaf.empty()) {
    if (allowed.Has(Role::kAnonymous)) return {};
    return {PeerFault::kNoCertificate, absl::StrCat("wanted: ", allowed.ToString())};
  }
  absl::StatusOr<Certificates> leaf = ReadCertificates(peer.leaf, 1);
  if (!leaf.ok()) return {PeerFault::kUnreadable, std::string(leaf.status().message())};
  Certificates chain;
  if (!peer.chain.empty()) {
    absl::StatusOr<Certificates> read = ReadCertificates(peer.chain, kChainMax);
    if (!read.ok()) return {PeerFault::kUnreadable, std::string(read.status().message())};
    chain = *std::move(read);
  }
  PeerVerdict verdict = CheckChain(*leaf->front(), chain, side, roots, now);
  if (verdict.fault != PeerFault::kNone) return verdict;
  const Roles roles = RolesOf(*leaf->front());
  if (roles.empty()) {
    return {PeerFault::kNoRole, absl::StrCat("no URI ", RoleUri(Role::kRouter),
                                             " or the like; wanted: ", allowed.ToString())};
  }
  if (!allowed.Meets(roles)) {
    return {PeerFault::kWrongRole,
            absl::StrCat("it is ", roles.ToString(), "; wanted: ", allowed.ToString())};
  }
  return {};
}

absl::StatusOr<std::unique_ptr<RootsFile>> RootsFile::Open(const std::string& path) {
  std::unique_ptr<RootsFile> file(new RootsFile(path));
  MutexLock lock(&file->mutex_);
  KVMESH_RETURN_IF_ERROR(file->Load());
  return file;
}

absl::Status RootsFile::Load() {
  version_ = FileVersionOf(path_);
  KVMESH_ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(path_));
  absl::StatusOr<StorePtr> roots = ReadRoots(pem);
  if (!roots.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", roots.status().message()));
  }
  roots_ = *std::move(roots);
  return absl::OkStatus();
}

StorePtr RootsFile::Get() {
  MutexLock lock(&mutex_);
  if (FileVersionOf(path_) == version_) return roots_;
  const absl::Status loaded = Load();
  if (loaded.ok()) {
    LOG(INFO) << "new trusted roots from " << path_;
  } else {
    LOG(ERROR) << "the trusted roots of before stay: " << loaded.message();
  }
  return roots_;
}

}  // namespace kvmesh::rpc

// Certificates for tests, made by tools/dev-certs in a folder that goes with the object.
#pragma once

#include <string>
#include <vector>

#include "common/rpc/role.h"

namespace kvmesh::testing {

class DevCerts {
 public:
  // A certificate for each of these roles (none named: for every role); of an authority of its own,
  // or of that of `authority`.
  explicit DevCerts(const std::vector<rpc::Role>& roles = {}, const DevCerts* authority = nullptr);
  ~DevCerts();
  DevCerts(const DevCerts&) = delete;
  DevCerts& operator=(const DevCerts&) = delete;

  const std::string& folder() const { return folder_; }
  // As --tls-dir wants it.
  std::string Of(rpc::Role role) const;
  // Makes the certificate of this role again: valid for `days` from `from_days` on.
  void Renew(rpc::Role role, int days, int from_days = 0) const;
  // A copy of a role's folder, which the test may change.
  std::string CopyOf(rpc::Role role, const std::string& name) const;

 private:
  void Run(const std::string& arguments) const;

  const std::string folder_;
};

}  // namespace kvmesh::testing

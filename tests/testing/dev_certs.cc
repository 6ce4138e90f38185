#include "tests/testing/dev_certs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"

namespace kvmesh::testing {

DevCerts::DevCerts(const std::vector<rpc::Role>& roles, const DevCerts* authority)
    : folder_((std::filesystem::temp_directory_path() /
               absl::StrCat("kvmesh-certs-", RandomId<InstanceId>().ToHex().substr(0, 12)))
                  .string()) {
  if (authority != nullptr) {
    std::filesystem::create_directory(folder_);
    std::filesystem::copy(authority->folder_ + "/ca", folder_ + "/ca");
  }
  std::string names;
  for (const rpc::Role role : roles) absl::StrAppend(&names, " ", rpc::RoleName(role));
  Run(names);
}

DevCerts::~DevCerts() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void DevCerts::Run(const std::string& arguments) const {
  // Tests run in the root of the source tree.
  const std::string command = absl::StrCat("tools/dev-certs '", folder_, "' ", arguments);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT(cert-env33-c): a script of ours
}

std::string DevCerts::Of(rpc::Role role) const {
  return absl::StrCat(folder_, "/", rpc::RoleName(role));
}

void DevCerts::Renew(rpc::Role role, int days, int from_days) const {
  Run(absl::StrCat("--days ", days, " --from-days ", from_days, " ", rpc::RoleName(role)));
}

std::string DevCerts::CopyOf(rpc::Role role, const std::string& name) const {
  const std::string copy = absl::StrCat(folder_, "/", name);
  std::filesystem::copy(Of(role), copy);
  return copy;
}

}  // namespace kvmesh::testing

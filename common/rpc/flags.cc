#include "common/rpc/flags.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvmesh::rpc {

absl::Status CheckAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  uint32_t port = 0;
  const bool good = absl::StartsWith(address, "unix:")
                        ? address.size() > 5
                        : colon != absl::string_view::npos && !host.empty() &&
                              (host.find(':') == absl::string_view::npos || host.back() == ']') &&
                              absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
                              port <= 65535;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", address, "\" is not HOST:PORT with a port from 1 to 65535"));
}

std::vector<std::string> SplitNames(absl::string_view names) {
  std::vector<std::string> split;
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipWhitespace())) {
    split.emplace_back(absl::StripAsciiWhitespace(name));
  }
  return split;
}

CLI::Validator Address() {
  return CLI::Validator(
      [](const std::string& address) {
        const absl::Status status = CheckAddress(address);
        return std::string(status.message());
      },
      "HOST:PORT");
}

CLI::Validator WholeNumber(uint64_t min, uint64_t max) {
  return CLI::Validator(
      [min, max](const std::string& text) {
        uint64_t number = 0;
        if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) {
          return std::string();
        }
        return absl::StrCat("\"", text, "\" is not a whole number from ", min, " to ", max);
      },
      "");
}

}  // namespace kvmesh::rpc

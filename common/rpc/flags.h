// Checks of flag values that CLI11 lacks. Each tells the value and what is expected.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvmesh::rpc {

// InvalidArgument: neither HOST:PORT with a port from 1 to 65535 (HOST may be [V6]) nor unix:PATH.
absl::Status CheckAddress(absl::string_view address);
// The same for a flag.
CLI::Validator Address();

// Digits alone: CLI11 itself takes -1 for the largest number, and so any that is too large.
CLI::Validator WholeNumber(uint64_t min, uint64_t max = std::numeric_limits<uint64_t>::max());

}  // namespace kvmesh::rpc

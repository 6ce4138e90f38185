// What CLI11 lacks: checks of flag values, each of which tells the value and what is expected, and
// lists.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvmesh::rpc {

// InvalidArgument: neither HOST:PORT with a port from 1 to 65535 (HOST may be [V6]) nor unix:PATH.
absl::Status CheckAddress(absl::string_view address);
// The same for a flag.
CLI::Validator Address();

// Those of a list that is separated by commas; spaces around them do not count.
std::vector<std::string> SplitNames(absl::string_view names);

// Digits alone: CLI11 itself takes -1 for the largest number, and so any that is too large.
CLI::Validator WholeNumber(uint64_t min, uint64_t max = std::numeric_limits<uint64_t>::max());

}  // namespace kvmesh::rpc

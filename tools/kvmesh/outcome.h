// How a command ends: its exit code, and what it says to people or to scripts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvmesh::cli {

// Of every command; part of the interface.
enum ExitCode {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kUnavailable = 3,
  kRefused = 4,  // by a limit
  kInterrupted = 130,
};

// Keeps the order in which keys were added.
using Json = nlohmann::ordered_json;

// Unavailable: 3. A limit (ResourceExhausted) or a value that is refused (InvalidArgument,
// OutOfRange): 4. Cancelled by the user: 130. Everything else: 1.
int ExitCodeOf(const absl::Status& status, bool interrupted);

// The one object of --json, on stdout. Invalid UTF-8 is printed as U+FFFD.
void PrintJson(const Json& json);

// Says why on stderr; under --json also {"error": {code, reason, message}} on stdout.
// Returns the exit code.
int Report(const absl::Status& status, bool json, bool interrupted);

// One line of progress on stderr, only when that is a terminal.
void Progress(absl::string_view line);

// Bytes as "12.3 MiB".
std::string HumanBytes(double bytes);

}  // namespace kvmesh::cli

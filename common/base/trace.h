// W3C Trace Context (https://www.w3.org/TR/trace-context/, version 00): which request a piece of
// work is for, and which piece it is a part of. Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvmesh {

struct Trace {
  std::string trace_id;  // 32 hex digits; empty: there is no trace
  std::string span_id;   // 16 hex digits: of the piece of work that whoever has this is part of
  bool sampled = false;  // spans are wanted

  bool exists() const { return !trace_id.empty(); }
  // "00-<trace_id>-<span_id>-<flags>"; empty where there is no trace.
  std::string ToTraceparent() const;
};

// None: not of that form, a version that does not exist, or an id of zeros. A header that is wrong
// counts as none, as the standard demands; it is no error of the request.
std::optional<Trace> ParseTraceparent(absl::string_view header);

// A new trace, not sampled, of 24 random bytes.
Trace NewTrace(absl::string_view random);

// A piece of work of `parent`. The id follows from the parent's and what sets the piece apart from
// its siblings ("forward", hop 1, attempt 2), so that cores need no randomness for it.
Trace ChildOf(const Trace& parent, absl::string_view name, uint64_t number = 0);

}  // namespace kvmesh

// Bytes of tokens to streamed text: valid UTF-8 only, byte-exact, stop strings cut out. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvmesh::text {

// Incremental UTF-8 decoding: an incomplete but possible sequence is held; each maximal ill-formed
// subpart gives one U+FFFD at once (WHATWG). Not thread-safe.
class Utf8Stream {
 public:
  // Text that may be emitted after these bytes.
  std::string Push(absl::string_view bytes);
  // The rest, at the end: one U+FFFD per maximal subpart of an incomplete tail.
  std::string Flush();

 private:
  std::string pending_;  // the beginning of one character
};

// Cuts decoded text at the first place where a stop string is complete; if several end there, the
// longest counts. Compares code points as they are. Only what may still become a stop string is
// held back. Not thread-safe.
class StopMatcher {
 public:
  // UTF-8. Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stop_strings);

  struct Result {
    std::string text;         // may be emitted now
    bool stopped = false;     // a stop string is complete; nothing follows
    std::string stop_string;  // which
  };
  // `text`: valid UTF-8, whole characters. After a stop, nothing more comes out.
  Result Push(absl::string_view text);
  // What was held back, at the end.
  std::string Flush();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kvmesh::text

// Utf8Stream and StopMatcher against the plainest possible versions of themselves. The input's
// first byte says how long the pieces are; then two stop strings, each ended by a NUL; the rest is
// the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/text/detokenizer.h"

namespace {

using kvmesh::text::StopMatcher;
using kvmesh::text::Utf8Stream;

struct Outcome {
  std::string text;
  std::string stop_string;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Whether some character begins with exactly these bytes (more may follow).
bool BeginsCharacter(const std::string& bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const size_t length = at(0) < 0x80 ? 1 : at(0) < 0xE0 ? 2 : at(0) < 0xF0 ? 3 : 4;
  if (bytes.size() > length || at(0) > 0xF4 || (at(0) >= 0x80 && at(0) < 0xC2)) return false;
  for (size_t i = 1; i < bytes.size(); ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return false;
  }
  if (bytes.size() < 2) return true;
  return !(at(0) == 0xE0 && at(1) < 0xA0) && !(at(0) == 0xED && at(1) > 0x9F) &&
         !(at(0) == 0xF0 && at(1) < 0x90) && !(at(0) == 0xF4 && at(1) > 0x8F);
}

// Characters of `bytes`; each maximal ill-formed part is one U+FFFD.
std::vector<std::string> Characters(const std::string& bytes) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    while (at + size < bytes.size() && BeginsCharacter(bytes.substr(at, size + 1))) ++size;
    const std::string part = bytes.substr(at, size);
    const auto lead = static_cast<uint8_t>(bytes[at]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    characters.push_back(size == length ? part : "\xEF\xBF\xBD");
    at += size == 0 ? 1 : size;
  }
  return characters;
}

std::string Join(const std::vector<std::string>& characters) {
  std::string text;
  for (const std::string& character : characters) text += character;
  return text;
}

Outcome Reference(const std::string& bytes, const std::vector<std::string>& stops) {
  Outcome outcome;
  for (const std::string& character : Characters(bytes)) {
    outcome.text += character;
    for (const std::string& stop : stops) {
      if (!stop.empty() && outcome.text.ends_with(stop) &&
          stop.size() > outcome.stop_string.size()) {
        outcome.stop_string = stop;
      }
    }
    if (!outcome.stop_string.empty()) {
      outcome.text.resize(outcome.text.size() - outcome.stop_string.size());
      return outcome;
    }
  }
  return outcome;
}

Outcome InPieces(const std::string& bytes, size_t piece_bytes,
                 const std::vector<std::string>& stops) {
  Utf8Stream stream;
  StopMatcher matcher(stops);
  Outcome outcome;
  for (size_t at = 0; at < bytes.size() && outcome.stop_string.empty(); at += piece_bytes) {
    const StopMatcher::Result result = matcher.Push(stream.Push(bytes.substr(at, piece_bytes)));
    outcome.text += result.text;
    outcome.stop_string = result.stop_string;
  }
  if (!outcome.stop_string.empty()) return outcome;
  const StopMatcher::Result last = matcher.Push(stream.Flush());
  outcome.stop_string = last.stop_string;
  outcome.text += last.text + matcher.Flush();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t piece_bytes = 1 + data[0] % 8;
  std::string rest(reinterpret_cast<const char*>(data) + 1, std::min<size_t>(size - 1, 4096));
  std::vector<std::string> stops;
  while (stops.size() < 2) {
    const size_t end = std::min(rest.find('\0'), std::min<size_t>(rest.size(), 256));
    stops.push_back(Join(Characters(rest.substr(0, end))));
    rest.erase(0, end + 1);
  }
  const Outcome expected = Reference(rest, stops);
  if (InPieces(rest, piece_bytes, stops) != expected) abort();
  return 0;
}

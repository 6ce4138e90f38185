#include "common/model/printable.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvmesh::model {
namespace {

constexpr size_t kPrintedBytesMax = 100;

// Bytes of the well-formed UTF-8 character at the front (Unicode 15, table 3-7); 0 when it is
// ill-formed.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string Printable(absl::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kPrintedBytesMax)) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      shown.push_back(c);
    } else {
      absl::StrAppend(&shown, "\\x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
    }
  }
  if (text.size() > kPrintedBytesMax) shown += "...";
  return shown;
}

std::string LooksLike(absl::Span<const uint8_t> file) {
  const absl::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  if (bytes.empty()) return ": it is empty";
  if (absl::StartsWith(bytes, "version https://git-lfs")) {
    return ": it is a Git LFS pointer, not the file it points to";
  }
  if (absl::StartsWith(bytes, "GGUF")) return ": it is a GGUF file";
  if (absl::StartsWith(bytes, "PK\x03\x04") || absl::StartsWith(bytes, "\x80\x02")) {
    return ": it is a pickle or zip archive";
  }
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(bytes.substr(0, 512));
  if (absl::StartsWithIgnoreCase(start, "<!doctype") ||
      absl::StartsWithIgnoreCase(start, "<html")) {
    return ": it is an HTML page";
  }
  return "";
}

}  // namespace kvmesh::model

#include "common/model/printable.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvmesh::model {
namespace {

constexpr size_t kPrintedBytesMax = 100;

}  // namespace

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

#include "common/base/trace.h"

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "common/base/sha256.h"

namespace kvmesh {
namespace {

constexpr size_t kTraceIdDigits = 32;
constexpr size_t kSpanIdDigits = 16;
constexpr size_t kLength = 2 + 1 + kTraceIdDigits + 1 + kSpanIdDigits + 1 + 2;
constexpr unsigned kSampledFlag = 1;

// Lower-case hex digits alone.
bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool IsZero(absl::string_view digits) {
  return digits.find_first_not_of('0') == absl::string_view::npos;
}

unsigned HexValue(char digit) {
  return static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

}  // namespace

std::string Trace::ToTraceparent() const {
  if (!exists()) return "";
  return absl::StrCat("00-", trace_id, "-", span_id, sampled ? "-01" : "-00");
}

std::optional<Trace> ParseTraceparent(absl::string_view header) {
  if (header.size() < kLength) return std::nullopt;
  const absl::string_view version = header.substr(0, 2);
  const absl::string_view trace_id = header.substr(3, kTraceIdDigits);
  const absl::string_view span_id = header.substr(4 + kTraceIdDigits, kSpanIdDigits);
  const absl::string_view flags = header.substr(kLength - 2, 2);
  // Later versions may have more behind a dash; what they begin with is the same.
  const bool end = header.size() == kLength || (version != "00" && header[kLength] == '-');
  if (!end || !IsHex(version) || version == "ff" || header[2] != '-' ||
      header[3 + kTraceIdDigits] != '-' || header[kLength - 3] != '-' || !IsHex(trace_id) ||
      IsZero(trace_id) || !IsHex(span_id) || IsZero(span_id) || !IsHex(flags)) {
    return std::nullopt;
  }
  return Trace{.trace_id = std::string(trace_id),
               .span_id = std::string(span_id),
               .sampled = (HexValue(flags[1]) & kSampledFlag) != 0};
}

Trace NewTrace(absl::string_view random) {
  const std::string digits = HexEncode(random);
  return {.trace_id = digits.substr(0, kTraceIdDigits),
          .span_id = digits.substr(kTraceIdDigits, kSpanIdDigits)};
}

Trace ChildOf(const Trace& parent, absl::string_view name, uint64_t number) {
  if (!parent.exists()) return {};
  Sha256 sha;
  for (const absl::string_view field :
       {absl::string_view(parent.trace_id), absl::string_view(parent.span_id), name}) {
    sha.UpdateU64(field.size()).Update(field);
  }
  sha.UpdateU64(number);
  return {.trace_id = parent.trace_id,
          .span_id = sha.Digest().ToHex().substr(0, kSpanIdDigits),
          .sampled = parent.sampled};
}

}  // namespace kvmesh

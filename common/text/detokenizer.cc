#include "common/text/detokenizer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvmesh::text {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// The well-formed sequences of the Unicode standard, table 3-7.
struct Lead {
  size_t length = 1;  // of the whole character
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
  bool valid = true;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2 || byte > 0xF4) return {.valid = false};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.length = 3, .second_max = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .second_min = 0x90};
  if (byte == 0xF4) return {.length = 4, .second_max = 0x8F};
  return {.length = 4};
}

// How many bytes of the character at the front of `bytes` are there and fit; 0: none can begin so.
size_t FittingBytes(absl::string_view bytes, const Lead& lead) {
  if (!lead.valid) return 0;
  size_t count = 1;
  for (; count < std::min(lead.length, bytes.size()); ++count) {
    const auto byte = static_cast<uint8_t>(bytes[count]);
    const uint8_t min = count == 1 ? lead.second_min : 0x80;
    const uint8_t max = count == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) break;
  }
  return count;
}

// Decodes from the front of `bytes` and returns how many were used: all, or all but a beginning of
// a character at the end.
size_t Decode(absl::string_view bytes, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const absl::string_view rest = bytes.substr(at);
    const Lead lead = LeadOf(static_cast<uint8_t>(rest[0]));
    const size_t fitting = FittingBytes(rest, lead);
    if (fitting == lead.length && lead.valid) {
      out->append(rest.data(), fitting);
    } else if (fitting == rest.size()) {
      break;
    } else {
      out->append(kReplacement);
    }
    at += std::max<size_t>(fitting, 1);
  }
  return at;
}

// The longest suffix of `text` that is a proper prefix of a stop string.
size_t HeldBytes(absl::string_view text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t size = std::min(stop.size() - 1, text.size()); size > held; --size) {
      if (text.substr(text.size() - size) == absl::string_view(stop).substr(0, size)) held = size;
    }
  }
  return held;
}

}  // namespace

std::string Utf8Stream::Push(absl::string_view bytes) {
  pending_.append(bytes.data(), bytes.size());
  std::string text;
  pending_.erase(0, Decode(pending_, &text));
  return text;
}

std::string Utf8Stream::Flush() {
  const bool incomplete = !pending_.empty();
  pending_.clear();
  return incomplete ? kReplacement : "";
}

StopMatcher::StopMatcher(std::vector<std::string> stop_strings) : stops_(std::move(stop_strings)) {
  stops_.erase(std::remove(stops_.begin(), stops_.end(), ""), stops_.end());
}

StopMatcher::Result StopMatcher::Push(absl::string_view text) {
  if (stopped_) return {};
  held_.append(text.data(), text.size());
  // The first place of a stop string is also where it is complete first.
  const std::string* found = nullptr;
  size_t found_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < found_end || (end == found_end && stop.size() > found->size())) {
      found = &stop;
      found_end = end;
    }
  }
  Result result;
  if (found != nullptr) {
    stopped_ = true;
    result.stopped = true;
    result.stop_string = *found;
    result.text = held_.substr(0, found_end - found->size());
    held_.clear();
    return result;
  }
  const size_t emitted = held_.size() - HeldBytes(held_, stops_);
  result.text = held_.substr(0, emitted);
  held_.erase(0, emitted);
  return result;
}

std::string StopMatcher::Flush() {
  return std::exchange(held_, {});
}

}  // namespace kvmesh::text

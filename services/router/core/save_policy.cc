#include "services/router/core/save_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/slab/format.h"

namespace kvmesh::router {
namespace {

constexpr char kTooShort[] = "too_short";
constexpr char kInsideCharacter[] = "inside_character";
constexpr char kCannotCut[] = "cannot_cut";

// Meta section: fixed fields and labels; per layer a table entry and its padding; per cut point.
constexpr uint64_t kMetaFixedBytes = 16 << 10;
constexpr uint64_t kLayerEntryBytes = 64;
constexpr uint64_t kCutPointBytes = 48;

// `wanted`, moved back to a boundary where that is possible.
SavePoint PointAt(const CheckpointGates& gates, bool state_can_be_cut, const KeyText& text,
                  uint64_t wanted, bool exact) {
  const uint64_t at = state_can_be_cut ? text.BoundaryAtOrBefore(wanted) : wanted;
  if (at < gates.min_tokens) return {.skipped = kTooShort};
  if (!text.IsBoundary(at)) return {.skipped = kInsideCharacter};
  return {.at_tokens = at, .exact = exact};
}

}  // namespace

absl::Status CheckGates(const CheckpointGates& gates) {
  const std::pair<const char*, uint32_t> positive[] = {
      {"min_tokens", gates.min_tokens},
      {"cold_max_tokens", gates.cold_max_tokens},
      {"continued_interval", gates.continued_interval},
      {"boundary_align_tokens", gates.boundary_align_tokens},
      {"restore_min_tokens", gates.restore_min_tokens}};
  for (const auto& [name, value] : positive) {
    if (value == 0) return absl::InvalidArgumentError(absl::StrCat(name, " is 0; at least 1"));
  }
  if (gates.cold_max_tokens < gates.min_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("cold_max_tokens is ", gates.cold_max_tokens,
                                                   ", below min_tokens of ", gates.min_tokens));
  }
  return absl::OkStatus();
}

std::vector<SavePoint> ColdSavePoints(const CheckpointGates& gates, bool state_can_be_cut,
                                      const KeyText& text, uint64_t prompt_tokens,
                                      uint64_t restored) {
  if (prompt_tokens - restored < gates.cold_min_tokens) return {};
  const uint64_t end = std::min<uint64_t>(prompt_tokens, gates.cold_max_tokens);
  std::vector<SavePoint> points;
  const SavePoint last = PointAt(gates, state_can_be_cut, text, end, !state_can_be_cut);
  if (!state_can_be_cut && end > gates.boundary_trim_tokens) {
    uint64_t trimmed = end - gates.boundary_trim_tokens;
    trimmed -= trimmed % gates.boundary_align_tokens;
    const SavePoint point = PointAt(gates, false, text, trimmed, true);
    if (point.at_tokens > restored && point.at_tokens < end) points.push_back(point);
  }
  if (last.at_tokens == 0 || last.at_tokens > restored) points.push_back(last);
  return points;
}

std::optional<SavePoint> ContinuedSavePoint(const CheckpointGates& gates, bool state_can_be_cut,
                                            const KeyText& text, uint64_t held, uint64_t generated,
                                            uint64_t last_saved) {
  if (generated - last_saved < gates.continued_interval) return std::nullopt;
  // Inside a character the next token may be a better place; it is asked again then.
  if (!state_can_be_cut && !text.IsBoundary(held)) return std::nullopt;
  return PointAt(gates, state_can_be_cut, text, held, !state_can_be_cut);
}

SavePoint FinishSavePoint(const CheckpointGates& gates, bool state_can_be_cut, const KeyText& text,
                          uint64_t seen, uint64_t held) {
  const uint64_t wanted = std::min(seen, held);
  if (!state_can_be_cut && wanted < held) return {.skipped = kCannotCut};
  return PointAt(gates, state_can_be_cut, text, wanted, !state_can_be_cut);
}

uint64_t SlabBytesMax(const HopStateBytes& state, LayerRange layers, uint64_t tokens,
                      uint64_t text_bytes, uint32_t hidden_size, const CheckpointGates& gates) {
  const uint64_t payload =
      tokens * state.per_token + state.fixed + layers.size() * slab::kAlignment;
  const uint64_t pieces = payload / slab::kPieceBytes + 2 * layers.size();
  const uint64_t cut_points = tokens / gates.boundary_align_tokens + 1;
  const uint64_t meta = kMetaFixedBytes + sizeof(uint32_t) * (tokens + pieces + hidden_size) +
                        text_bytes + layers.size() * kLayerEntryBytes + cut_points * kCutPointBytes;
  return slab::AlignUp(slab::kHeadBytes + meta) + payload + slab::kTrailerBytes;
}

absl::string_view SaveReasonName(forward::SaveReason reason) {
  switch (reason) {
    case forward::SaveReason::kCold:
      return "cold";
    case forward::SaveReason::kContinued:
      return "continued";
    case forward::SaveReason::kFinish:
      return "finish";
    case forward::SaveReason::kEvict:
      return "evict";
    case forward::SaveReason::kShutdown:
      return "shutdown";
  }
  return "unknown";
}

}  // namespace kvmesh::router

#include "services/shard/core/save_snapshot.h"

#include <algorithm>
#include <utility>

namespace kvmesh::shard {

uint64_t CanonicalBytes(const SessionState& state, uint64_t tokens) {
  uint64_t bytes = 0;
  for (const auto& layer : state) {
    if (layer != nullptr) bytes += 2 * tokens * layer->row_bytes();
  }
  return bytes;
}

bool CanBeCut(const SessionState& state) {
  return std::all_of(state.begin(), state.end(), [](const auto& layer) {
    return layer == nullptr || layer->kind() == model::LayerKind::kKeyValue;
  });
}

std::variant<StateSnapshot, SaveDrop> TakeSnapshot(const SessionEntry& entry, LayerRange layers,
                                                   uint64_t at_tokens) {
  if (!entry.has_state || at_tokens == 0 || at_tokens > entry.held) return SaveDrop::kNotHeld;
  const bool cut = at_tokens < entry.held;
  if (cut && !CanBeCut(entry.state)) return SaveDrop::kCannotCut;
  StateSnapshot snapshot{
      .cache_namespace = entry.cache_namespace,
      .layers = layers,
      .tokens = {entry.ids.begin(), entry.ids.begin() + static_cast<std::ptrdiff_t>(at_tokens)},
      .bytes = CanonicalBytes(entry.state, at_tokens)};
  snapshot.state.resize(entry.state.size());
  for (size_t layer = 0; layer < entry.state.size(); ++layer) {
    if (entry.state[layer] == nullptr) continue;
    auto taken = entry.state[layer]->Snapshot(at_tokens);
    if (!taken.ok()) {
      return taken.status().code() == absl::StatusCode::kResourceExhausted ? SaveDrop::kNoMemory
                                                                           : SaveDrop::kCannotCut;
    }
    snapshot.state[layer] = *std::move(taken);
  }
  if (!cut) {
    snapshot.last_row = entry.last_row;
  } else if (at_tokens == entry.prefill_end) {
    snapshot.last_row = entry.prefill_row;
  }
  return snapshot;
}

StateSnapshot TakeWhole(SessionEntry&& entry, LayerRange layers) {
  const uint64_t bytes = CanonicalBytes(entry.state, entry.held);
  return {.cache_namespace = std::move(entry.cache_namespace),
          .layers = layers,
          .tokens = std::move(entry.ids),
          .state = std::move(entry.state),
          .last_row = std::move(entry.last_row),
          .bytes = bytes};
}

}  // namespace kvmesh::shard

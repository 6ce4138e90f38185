// When a generation's state is worth a checkpoint, and at which length (DESIGN §5.4). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "services/router/core/key_text.h"

namespace kvmesh::router {

// In tokens.
struct CheckpointGates {
  uint32_t min_tokens = 512;            // shorter rows are not saved
  uint32_t cold_min_tokens = 512;       // prefills of fewer tokens are not saved
  uint32_t cold_max_tokens = 30'000;    // longer prompts are cut there
  uint32_t continued_interval = 2'048;  // generated tokens between two saves
  uint32_t boundary_trim_tokens = 32;
  uint32_t boundary_align_tokens = 256;
  uint32_t restore_min_tokens = 64;  // restores of fewer are not worth the way
};

// InvalidArgument: a gate that no row could pass (zero intervals and the like), named with its
// value.
absl::Status CheckGates(const CheckpointGates& gates);

// A length to save at, or why there is none.
struct SavePoint {
  uint64_t at_tokens = 0;  // 0: none
  // The hops must hold exactly so many when the Save comes: fewer cannot be taken from their state.
  bool exact = false;
  std::string skipped;  // "too_short", "inside_character", "cannot_cut"
};

// Below, `text` is that of the sequence, at least as far as the save could reach, and
// `state_can_be_cut` says that every layer's state of more tokens holds that of fewer.

// After a prefill of all but the first `restored` tokens of a prompt. Where state cannot be cut
// there are up to two rows: the prompt's end and, for prompts that go on differently, its trimmed
// and aligned boundary; else the latter is one of the row's cut points. Ascending. Empty: too
// little was prefilled.
std::vector<SavePoint> ColdSavePoints(const CheckpointGates& gates, bool state_can_be_cut,
                                      const KeyText& text, uint64_t prompt_tokens,
                                      uint64_t restored);

// Whether a save is due after `generated` tokens, the last one at `last_saved` (0: none yet). The
// hops hold `held` tokens of the sequence.
std::optional<SavePoint> ContinuedSavePoint(const CheckpointGates& gates, bool state_can_be_cut,
                                            const KeyText& text, uint64_t held, uint64_t generated,
                                            uint64_t last_saved);

// At the end: the client saw the text of the first `seen` tokens of the sequence, and the hops hold
// `held`.
SavePoint FinishSavePoint(const CheckpointGates& gates, bool state_can_be_cut, const KeyText& text,
                          uint64_t seen, uint64_t held);

// What sizes a slab of one hop's layers.
struct HopStateBytes {
  uint64_t per_token = 0;
  uint64_t fixed = 0;
  friend bool operator==(const HopStateBytes&, const HopStateBytes&) = default;
};

// At least the size of the slab's file (docs/kvc-format.md).
uint64_t SlabBytesMax(const HopStateBytes& state, LayerRange layers, uint64_t tokens,
                      uint64_t text_bytes, uint32_t hidden_size, const CheckpointGates& gates);

absl::string_view SaveReasonName(forward::SaveReason reason);

}  // namespace kvmesh::router

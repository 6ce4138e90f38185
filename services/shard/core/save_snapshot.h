// Takes what a save stores out of a session. Pure.
#pragma once

#include <cstdint>
#include <variant>

#include "services/shard/core/checkpoint.h"
#include "services/shard/core/session_store.h"

namespace kvmesh::shard {

// Bytes of the first `tokens` tokens' state in canonical form: keys and values of every layer.
uint64_t CanonicalBytes(const SessionState& state, uint64_t tokens);

// Whether the state may be cut back to fewer tokens: all its layers are key/value ones.
bool CanBeCut(const SessionState& state);

// The entry's first `at_tokens` tokens. The session goes on; full blocks are shared with it. Has
// the last output row only if exactly so many tokens are held, or if the last prefill ended there.
// kNotHeld, kCannotCut, kNoMemory.
std::variant<StateSnapshot, SaveDrop> TakeSnapshot(const SessionEntry& entry, LayerRange layers,
                                                   uint64_t at_tokens);

// All that the entry holds, moved out of it: the caller forgets the entry's state. It has some.
StateSnapshot TakeWhole(SessionEntry&& entry, LayerRange layers);

}  // namespace kvmesh::shard

// One sequence of tokens run in different ways, to be compared bit by bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "services/shard/engine/decoder_engine.h"
#include "tests/unit/engine/engine_chain.h"

namespace kvmesh::shard {

// What a run of a sequence leaves: for each position the row after the last layer, and the logits
// of the last position of each piece that was fed.
struct SequenceBits {
  std::vector<float> hidden;               // [tokens, hidden_size]
  std::vector<std::vector<float>> logits;  // [tokens]; empty where none were asked for
};

// `tokens` in pieces of `piece`, with what came before in the session's state.
absl::StatusOr<SequenceBits> RunInPieces(EngineChain& chain, const std::vector<uint32_t>& tokens,
                                         size_t piece);

// The first position at which `got` differs from `want` in a bit, in words; empty: nowhere. Logits
// are compared where both have them; at least the last position must have.
std::string FirstDifference(const SequenceBits& got, const SequenceBits& want);

// Layers cut into `shards` near-equal ranges.
std::vector<uint32_t> CutsOf(uint32_t layers, uint32_t shards);

// Any ids of the vocabulary.
std::vector<uint32_t> SomeTokens(size_t count, uint32_t first, uint32_t vocab_size);

// Runs token `position` of the sequence, whose earlier tokens are run alone before, in one step
// with one row each (or a piece of a prefill each) of `mates` other sessions, itself the `place`-th
// of them all; the row and its logits.
absl::StatusOr<SequenceBits> RunAmongOthers(Engine& engine, const std::vector<uint32_t>& tokens,
                                            size_t position, size_t mates, size_t place);

// Every way to run `tokens` against running them whole on one engine with one thread: in pieces of
// 1, 7, 64 and 512, with two threads, over two and three shards, stateless, and in batches.
void ExpectSameBitsEveryWay(const model::Model& model, const EngineOptions& options,
                            const std::vector<uint32_t>& tokens);

}  // namespace kvmesh::shard

// Hops with checkpoints, and what plays the executor of their saves and restores: slabs in memory.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/slab/reader.h"
#include "services/shard/core/restore_reader.h"
#include "services/shard/core/save_slab.h"
#include "tests/testing/toy_checkpoint.h"
#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {

inline constexpr char kStore[] = "store:1";

inline CheckpointOptions WithCheckpoints() {
  return {.enabled = true, .fragments = true, .min_tokens = 2};
}

inline SlabFacts ToyFacts(const Engine& engine) {
  SlabFacts facts = SlabFactsOf(engine.info());
  facts.min_tokens = 2;
  facts.align_tokens = 2;
  return facts;
}

// The slab of a job, as the executor would store it.
inline std::string SlabOf(SaveJob& job, const SlabFacts& facts, const WriteId& write_id) {
  auto draft = DraftSlab(job.snapshot, job.reason, facts, testing::ToyVocabulary());
  EXPECT_TRUE(draft.ok()) << draft.status();
  const std::atomic<bool> cancel{false};
  auto built =
      BuildSlab(*std::move(draft), std::move(job.snapshot), write_id, 1700000000, facts, cancel);
  EXPECT_TRUE(built.ok()) << built.status();
  return (*built)->image().ToString();
}

// What a store answers to a Get of these layers.
inline std::string AnswerOf(const std::string& file, const std::vector<uint32_t>& layers,
                            uint32_t tokens) {
  const slab::MemorySource source(file);
  const auto envelope = slab::ReadEnvelope(source);
  EXPECT_TRUE(envelope.ok()) << envelope.status();
  std::string answer = file.substr(0, slab::kHeadBytes + envelope->meta.meta_bytes);
  for (const uint32_t layer : layers) {
    const auto pieces = slab::PiecesOf(envelope->meta, layer, tokens);
    if (!pieces.ok()) continue;
    for (const slab::Piece& piece : *pieces) answer += file.substr(piece.offset, piece.length);
  }
  return answer + file.substr(file.size() - slab::kTrailerBytes);
}

inline slab::SlabMeta MetaOf(const std::string& file) {
  const slab::MemorySource source(file);
  auto envelope = slab::ReadEnvelope(source);
  EXPECT_TRUE(envelope.ok()) << envelope.status();
  return envelope->meta;
}

inline forward::SlabRef RefOf(const std::string& file) {
  const slab::SlabMeta meta = MetaOf(file);
  return {.store_address = kStore,
          .key = meta.key,
          .layers = meta.header.layers,
          .write_id = meta.write_id,
          .tokens_sha256 = meta.tokens_sha256};
}

// Reads what a job asks for out of `files`, found by write and range.
inline RestoreResult Restore(const RestoreJob& job, const std::vector<std::string>& files,
                             const Engine& engine) {
  RestoredState restored{.state = engine.NewState()};
  for (const SlabRead& read : job.reads) {
    const std::string* file = nullptr;
    for (const std::string& candidate : files) {
      const forward::SlabRef ref = RefOf(candidate);
      if (ref.write_id == read.slab.write_id && ref.layers == read.slab.layers) file = &candidate;
    }
    if (file == nullptr) return RestoreFailure{.fault = RestoreFault::kNotFound, .slab = read.slab};
    const testing::ToyVocabulary vocabulary;
    RestoreReader reader({.read = read,
                          .cache_namespace = job.cache_namespace,
                          .tokens = job.tokens,
                          .kv_dtype = slab::DType::kF32,
                          .vocabulary = vocabulary,
                          .state = restored.state},
                         file->size());
    auto failure =
        reader.Append(AnswerOf(*file, read.layers, static_cast<uint32_t>(job.tokens.size())));
    if (!failure.has_value()) failure = reader.Finish();
    if (failure.has_value()) return *failure;
    if (restored.last_row.empty()) restored.last_row = reader.LastRow(engine.info().layers.end);
  }
  return restored;
}

// A hop of its own with checkpoints on.
class CheckpointHop : public HopHarness {
 public:
  explicit CheckpointHop(LayerRange layers = {0, kLayers},
                         const CheckpointOptions& options = WithCheckpoints(),
                         StoreLimits limits = Limits())
      : HopHarness(layers, WithEvicted(limits), true, options) {}

  static StoreLimits WithEvicted(StoreLimits limits) {
    limits.keep_evicted = true;
    return limits;
  }
  forward::Open MakeNamedOpen(uint8_t session, std::vector<uint32_t> history, uint64_t epoch = 1,
                              uint64_t attempt = 1) const {
    forward::Open open = MakeOpen(session, std::move(history), epoch, attempt);
    open.cache_namespace = ToyNamespace();
    return open;
  }
  forward::Save MakeSave(uint64_t at_tokens, uint8_t write = 7,
                         forward::SaveReason reason = forward::SaveReason::kCold) const {
    return {.at_tokens = at_tokens,
            .write_id = Write(write),
            .reason = reason,
            .targets = {{0, kStore}, {1, kStore}}};
  }
  // Opens stream 1 for session 1 and runs all of `tokens`.
  void Run(const std::vector<uint32_t>& tokens) {
    Send(1, MakeNamedOpen(1, tokens));
    Send(1, Prefill(tokens, 0, tokens.size(), true));
    ASSERT_EQ(RunAll(), 1);
    TakeTokens();
  }
  std::shared_ptr<SaveJob> TakeSaveJob() {
    std::vector<StartSave> saves = Take<StartSave>();
    EXPECT_EQ(saves.size(), 1u);
    return saves.empty() ? nullptr : saves.front().job;
  }
  std::vector<std::string> TakeSaveStates() {
    std::vector<std::string> states;
    for (const forward::SaveState& state : TakeAnswers<forward::SaveState>()) {
      static constexpr const char* kNames[] = {"started", "done", "dropped "};
      states.push_back(kNames[static_cast<int>(state.state)] + state.cause);
    }
    return states;
  }
};

}  // namespace kvmesh::shard

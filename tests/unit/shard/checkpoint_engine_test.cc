// The product's engine, saved and restored: bits of every later logit are those of a run that
// nothing interrupted, whatever split wrote the slabs and whatever split reads them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/model.h"
#include "common/slab/reader.h"
#include "services/shard/core/restore_plan.h"
#include "services/shard/core/restore_reader.h"
#include "services/shard/core/save_slab.h"
#include "services/shard/core/save_snapshot.h"
#include "services/shard/engine/native_engine.h"
#include "tests/testing/test_data.h"
#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

using Ids = std::vector<uint32_t>;
using Cuts = std::vector<uint32_t>;

// Every id is a word of its own.
class NumberVocabulary final : public Vocabulary {
 public:
  std::string Piece(uint32_t id) const override { return absl::StrCat(id, " "); }
  std::string KeyBytes(uint32_t id) const override { return Piece(id); }
  bool IsEndOfSequence(uint32_t) const override { return false; }
};

Ids SomeIds(size_t count) {
  Ids ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<uint32_t>(3 + i * 37) % 251;
  return ids;
}

// A model over engines in a row, with what their hops would hold.
class Chain {
 public:
  Chain(const model::Model& model, const Cuts& cuts, const EngineOptions& options) {
    uint32_t begin = 0;
    Cuts ends = cuts;
    ends.push_back(model.config().layer_count);
    for (const uint32_t end : ends) {
      auto engine = MakeNativeEngine(model, {begin, end}, options);
      EXPECT_TRUE(engine.ok()) << engine.status();
      SessionEntry entry;
      entry.has_state = true;
      entry.cache_namespace = ToyNamespace();
      entry.state = (*engine)->NewState();
      stages_.push_back({*std::move(engine), std::move(entry)});
      begin = end;
    }
  }

  // Logits after the last of `ids`, which follow what is held.
  std::vector<float> Feed(const Ids& ids) {
    std::vector<float> hidden;
    std::vector<float> logits;
    for (Stage& stage : stages_) {
      StepItem item{.state = &stage.entry.state,
                    .past_len = stage.entry.held,
                    .tokens = ids,
                    .hidden = hidden,
                    .want_logits = &stage == &stages_.back()};
      stage.engine->Step({&item, 1});
      EXPECT_TRUE(item.status.ok()) << item.status;
      stage.entry.Extend(ids);
      hidden = item.hidden_out;
      stage.entry.last_row.assign(
          hidden.end() - static_cast<std::ptrdiff_t>(hidden.size() / ids.size()), hidden.end());
      logits = item.logits;
    }
    return logits;
  }

  // One slab a stage, of the first `tokens` tokens.
  std::vector<std::string> Save(uint64_t tokens) {
    std::vector<std::string> files;
    for (Stage& stage : stages_) {
      const LayerRange layers = stage.engine->info().layers;
      auto taken = TakeSnapshot(stage.entry, layers, tokens);
      EXPECT_TRUE(std::holds_alternative<StateSnapshot>(taken));
      auto snapshot = std::get<StateSnapshot>(std::move(taken));
      const SlabFacts facts = SlabFactsOf(stage.engine->info());
      auto draft = DraftSlab(snapshot, forward::SaveReason::kCold, facts, vocabulary_);
      EXPECT_TRUE(draft.ok()) << draft.status();
      const std::atomic<bool> cancel{false};
      auto built = BuildSlab(*std::move(draft), std::move(snapshot), Write(5), 1, facts, cancel);
      EXPECT_TRUE(built.ok()) << built.status();
      files.push_back((*built)->image().ToString());
    }
    return files;
  }

  // Every stage starts from what these slabs have of its layers.
  void Restore(const std::vector<std::string>& files, const Ids& ids) {
    forward::HopRestore restore{.tokens = ids.size()};
    for (const std::string& file : files) restore.slabs.push_back(RefOf(file));
    for (Stage& stage : stages_) {
      const EngineInfo& info = stage.engine->info();
      auto reads = PlanReads(restore, info.layers);
      ASSERT_TRUE(reads.ok()) << reads.status();
      SessionEntry entry;
      entry.has_state = true;
      entry.cache_namespace = ToyNamespace();
      entry.state = stage.engine->NewState();
      for (const SlabRead& read : *reads) {
        for (const std::string& file : files) {
          if (RefOf(file).layers != read.slab.layers) continue;
          RestoreReader reader({.read = read,
                                .cache_namespace = entry.cache_namespace,
                                .tokens = ids,
                                .kv_dtype = info.kv_dtype,
                                .vocabulary = vocabulary_,
                                .state = entry.state},
                               file.size());
          auto failure =
              reader.Append(AnswerOf(file, read.layers, static_cast<uint32_t>(ids.size())));
          if (!failure.has_value()) failure = reader.Finish();
          ASSERT_FALSE(failure.has_value()) << failure->detail;
          if (entry.last_row.empty()) entry.last_row = reader.LastRow(info.layers.end);
        }
      }
      entry.Extend(ids);
      stage.entry = std::move(entry);
    }
  }

  std::vector<float> LogitsOfStoredRow() {
    auto logits = stages_.back().engine->Logits(stages_.back().entry.last_row);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return *logits;
  }

 private:
  struct Stage {
    std::unique_ptr<Engine> engine;
    SessionEntry entry;
  };
  NumberVocabulary vocabulary_;
  std::vector<Stage> stages_;
};

class CheckpointEngineTest : public ::testing::TestWithParam<std::tuple<const char*, KvDtype>> {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(testing::TestDataRoot() / "models" / std::get<0>(GetParam()));
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    options_ = {.threads = 2, .kv_dtype = std::get<1>(GetParam())};
  }

  std::unique_ptr<model::Model> model_;
  EngineOptions options_;
};

TEST_P(CheckpointEngineTest, EverySplitGoesOnToTheBitFromWhatEveryOtherSplitSaved) {
  const Ids prompt = SomeIds(130);  // two whole blocks of state and a part of one
  const uint32_t layers = model_->config().layer_count;
  ASSERT_GE(layers, 2u);
  const std::vector<Cuts> splits = {{}, {1}, {layers - 1}};
  Chain undisturbed(*model_, {}, options_);
  const std::vector<float> first = undisturbed.Feed(prompt);
  const std::vector<std::vector<float>> expected = {undisturbed.Feed({7}),
                                                    undisturbed.Feed({9, 11, 13})};
  for (const Cuts& written : splits) {
    Chain writer(*model_, written, options_);
    writer.Feed(prompt);
    const std::vector<std::string> files = writer.Save(prompt.size());
    for (const Cuts& read : splits) {
      Chain reader(*model_, read, options_);
      reader.Restore(files, prompt);
      EXPECT_EQ(reader.LogitsOfStoredRow(), first);
      EXPECT_EQ(reader.Feed({7}), expected[0]);
      EXPECT_EQ(reader.Feed({9, 11, 13}), expected[1]);
    }
  }
}

TEST_P(CheckpointEngineTest, AShorterTextGoesOnToTheBitFromALongerOnesState) {
  const Ids all = SomeIds(200);
  Chain writer(*model_, {1}, options_);
  writer.Feed(all);
  for (const size_t tokens : {1, 63, 64, 65, 128, 199}) {
    const Ids ids(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(tokens));
    Chain cold(*model_, {}, options_);
    cold.Feed(ids);
    const std::vector<float> expected = cold.Feed({5});
    Chain from_cut_save(*model_, {}, options_);
    from_cut_save.Restore(writer.Save(tokens), ids);
    EXPECT_EQ(from_cut_save.Feed({5}), expected) << tokens;
    Chain from_cut_read(*model_, {}, options_);
    from_cut_read.Restore(writer.Save(all.size()), ids);
    EXPECT_EQ(from_cut_read.Feed({5}), expected) << tokens;
  }
}

TEST_P(CheckpointEngineTest, ASlabIsLittleLargerThanItsState) {
  const Ids ids = SomeIds(500);
  Chain writer(*model_, {}, options_);
  writer.Feed(ids);
  const std::string file = writer.Save(ids.size())[0];
  uint64_t state = 0;
  for (const slab::Region& region : MetaOf(file).regions) state += region.length;
  // Ids, text, cut points and a page at most for each region: small models have small states.
  const uint64_t beside = 64 * ids.size() + 4096 * (model_->config().layer_count + 2);
  EXPECT_LE(file.size(), state + beside);
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointEngineTest,
                         ::testing::Combine(::testing::Values("llama-256-bf16", "qwen2-256-f16"),
                                            ::testing::Values(KvDtype::kF16, KvDtype::kBF16,
                                                              KvDtype::kF32)));

}  // namespace
}  // namespace kvmesh::shard

// How every engine behaves as an Engine: batches, failures of single items, cancellation, states,
// sizes. What it computes is in engine_golden_test.cc, to the bit in bit_equality_test.cc.
#include "services/shard/engine/decoder_engine.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {
namespace {

using ::testing::HasSubstr;

class DecoderEngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(testing::TestDataRoot() / "models" / "llama-tied");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    layers_ = model_->config().layer_count;
    engine_ = Make({0, layers_});
  }

  std::unique_ptr<Engine> Make(LayerRange range, EngineOptions options = {}) {
    options.numerics = GetParam();
    auto engine = MakeTestEngine(*model_, range, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static std::vector<uint32_t> Tokens(size_t count, uint32_t first) {
    std::vector<uint32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint32_t>(first + i * 37) % 320;
    return tokens;
  }

  // One item alone.
  StepItem Run(SessionState* state, uint64_t past_len, const std::vector<uint32_t>& tokens) {
    StepItem item{.state = state, .past_len = past_len, .tokens = tokens, .want_logits = true};
    engine_->Step({&item, 1});
    return item;
  }

  std::unique_ptr<model::Model> model_;
  uint32_t layers_ = 0;
  std::unique_ptr<Engine> engine_;
};

TEST_P(DecoderEngineTest, DecodingSessionsInOneBatchGivesTheBitsOfEachAlone) {
  std::vector<SessionState> together, alone;
  std::vector<uint64_t> lengths = {5, 70, 1};
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto prompt = Tokens(lengths[i], static_cast<uint32_t>(i));
    together.push_back(engine_->NewState());
    alone.push_back(engine_->NewState());
    ASSERT_TRUE(Run(&together[i], 0, prompt).status.ok());
    ASSERT_TRUE(Run(&alone[i], 0, prompt).status.ok());
  }
  const std::vector<uint32_t> token = {17};
  std::vector<StepItem> batch;
  for (size_t i = 0; i < lengths.size(); ++i) {
    batch.push_back(
        {.state = &together[i], .past_len = lengths[i], .tokens = token, .want_logits = true});
  }
  engine_->Step(absl::MakeSpan(batch));
  for (size_t i = 0; i < lengths.size(); ++i) {
    ASSERT_TRUE(batch[i].status.ok()) << batch[i].status;
    const StepItem single = Run(&alone[i], lengths[i], token);
    EXPECT_EQ(batch[i].logits, single.logits) << "session " << i;
    EXPECT_EQ(batch[i].hidden_out, single.hidden_out) << "session " << i;
  }
}

TEST_P(DecoderEngineTest, AnItemThatFailsDoesNotTouchTheOthers) {
  const std::vector<uint32_t> good = {1, 2, 3};
  const std::vector<uint32_t> bad = {1, 320};
  const std::vector<uint32_t> none;
  std::atomic<bool> cancel = true;
  SessionState state = engine_->NewState();
  SessionState cancelled = engine_->NewState();
  SessionState foreign(layers_);
  std::vector<StepItem> batch = {{.tokens = bad, .want_logits = true},
                                 {.state = &state, .tokens = good, .want_logits = true},
                                 {.state = &state, .past_len = 9, .tokens = good},
                                 {.state = &cancelled, .tokens = good, .cancel = &cancel},
                                 {.state = &foreign, .tokens = good},
                                 {.tokens = none},
                                 {.past_len = 2, .tokens = good}};
  engine_->Step(absl::MakeSpan(batch));
  EXPECT_EQ(batch[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(batch[0].status.message(), HasSubstr("320"));
  EXPECT_TRUE(batch[1].status.ok()) << batch[1].status;
  EXPECT_EQ(batch[2].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(batch[3].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(batch[4].status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(batch[5].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(batch[6].status.code(), absl::StatusCode::kInvalidArgument);

  SessionState fresh = engine_->NewState();
  EXPECT_EQ(batch[1].logits, Run(&fresh, 0, good).logits);
}

TEST_P(DecoderEngineTest, AStateCountsTheTokensOfItsSteps) {
  SessionState state = engine_->NewState();
  ASSERT_TRUE(Run(&state, 0, Tokens(3, 0)).status.ok());
  EXPECT_EQ(Run(&state, 2, Tokens(1, 0)).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Run(&state, 4, Tokens(1, 0)).status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Run(&state, 3, Tokens(1, 0)).status.ok());
  EXPECT_TRUE(Run(&state, 4, Tokens(1, 0)).status.ok());
}

TEST_P(DecoderEngineTest, TheNumberOfThreadsDoesNotChangeABit) {
  const auto prompt = Tokens(100, 3);
  SessionState state = engine_->NewState();
  const StepItem want = Run(&state, 0, prompt);
  for (const uint32_t threads : {1u, 3u}) {
    const auto engine = Make({0, layers_}, {.threads = threads});
    SessionState other = engine->NewState();
    StepItem item{.state = &other, .tokens = prompt, .want_logits = true};
    engine->Step({&item, 1});
    ASSERT_TRUE(item.status.ok());
    EXPECT_EQ(item.logits, want.logits) << threads << " threads";
  }
}

TEST_P(DecoderEngineTest, StatelessRowsBeyondATileEqualCachedOnes) {
  const auto prompt = Tokens(600, 5);
  const StepItem stateless = Run(nullptr, 0, prompt);
  SessionState state = engine_->NewState();
  const StepItem cached = Run(&state, 0, prompt);
  ASSERT_TRUE(stateless.status.ok());
  EXPECT_EQ(stateless.logits, cached.logits);
  EXPECT_EQ(stateless.hidden_out.size(), 600 * model_->config().hidden_size);
}

TEST_P(DecoderEngineTest, LogitsOfAStoredRowAreThoseOfTheStep) {
  SessionState state = engine_->NewState();
  const StepItem item = Run(&state, 0, Tokens(4, 1));
  const size_t hidden_size = model_->config().hidden_size;
  const auto logits =
      engine_->Logits(absl::MakeConstSpan(item.hidden_out).subspan(3 * hidden_size, hidden_size));
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(*logits, item.logits);
  EXPECT_EQ(engine_->Logits({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DecoderEngineTest, ARangeWithoutTheLastLayerHasNoLogits) {
  const auto engine = Make({0, 1});
  const std::vector<float> row(model_->config().hidden_size);
  EXPECT_EQ(engine->Logits(row).status().code(), absl::StatusCode::kFailedPrecondition);
  const std::vector<uint32_t> tokens = {1};
  StepItem item{.tokens = tokens, .want_logits = true};
  engine->Step({&item, 1});
  EXPECT_EQ(item.status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(DecoderEngineTest, HiddenRowsOfAnotherShapeAreRefused) {
  const std::vector<uint32_t> tokens = {1, 2};
  const std::vector<float> one_row(model_->config().hidden_size);
  StepItem at_first{.tokens = tokens, .hidden = one_row};
  engine_->Step({&at_first, 1});
  EXPECT_EQ(at_first.status.code(), absl::StatusCode::kInvalidArgument);
  const auto second = Make({1, layers_});
  StepItem short_rows{.tokens = tokens, .hidden = one_row};
  second->Step({&short_rows, 1});
  EXPECT_EQ(short_rows.status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DecoderEngineTest, ANanInAHiddenRowComesOutInTheLogits) {
  const auto last = Make({layers_ - 1, layers_});
  const std::vector<uint32_t> tokens = {1};
  std::vector<float> row(model_->config().hidden_size, 1.0f);
  row[0] = NAN;
  StepItem item{.tokens = tokens, .hidden = row, .want_logits = true};
  last->Step({&item, 1});
  ASSERT_TRUE(item.status.ok());
  EXPECT_TRUE(std::isnan(item.logits[0]));
}

TEST_P(DecoderEngineTest, StatesAreIndexedByAbsoluteLayer) {
  const auto middle = Make({1, 3});
  const SessionState state = middle->NewState();
  ASSERT_EQ(state.size(), layers_);
  EXPECT_EQ(state[0], nullptr);
  EXPECT_NE(state[1], nullptr);
  EXPECT_NE(state[2], nullptr);
  EXPECT_EQ(state[3], nullptr);
}

TEST_P(DecoderEngineTest, TheBytesOfAStateAreThoseAnnounced) {
  const EngineInfo& info = engine_->info();
  ASSERT_EQ(info.state_bytes.size(), 1u);
  SessionState state = engine_->NewState();
  ASSERT_TRUE(Run(&state, 0, Tokens(info.block_tokens + 1, 0)).status.ok());
  uint64_t bytes = 0;
  for (const auto& layer : state) bytes += layer->bytes();
  EXPECT_EQ(bytes, 2 * info.block_tokens * info.state_bytes[0].bytes_per_token);
}

TEST_P(DecoderEngineTest, InfoTellsWeightsAndNumerics) {
  const EngineInfo& info = engine_->info();
  EXPECT_EQ(info.quant, "f32/kv-f16");
  EXPECT_EQ(info.numerics_id, GetParam());
  EXPECT_TRUE(info.supports_kv_cache);
  EXPECT_EQ(info.weight_bytes, model_->WeightBytes({0, layers_}));
  EXPECT_FALSE(Make({0, 1}, {.disable_kv_cache = true})->info().supports_kv_cache);
}

// Norms are widened, and the rows of a matrix are filled up to whole panels: both are nothing where
// a model has a real model's shapes.
TEST_P(DecoderEngineTest, WeightsInMemoryAreHardlyMoreThanThoseOfTheFile) {
  const auto model = model::Model::Open(testing::TestDataRoot() / "models" / "llama-256-bf16");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const LayerRange range : {LayerRange{0, 1}, {1, 2}, {0, 2}}) {
    const auto engine = MakeTestEngine(**model, range, {.numerics = GetParam()});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const EngineInfo& info = (*engine)->info();
    EXPECT_EQ(info.weight_bytes, (*model)->WeightBytes(range));
    EXPECT_LE(info.weight_bytes_held, info.weight_bytes * 102 / 100);
    EXPECT_GE(info.weight_bytes_held, info.weight_bytes);
  }
}

TEST_P(DecoderEngineTest, RangesOutsideTheModelAreRefused) {
  for (const LayerRange range : {LayerRange{0, 0}, {2, 1}, {0, layers_ + 1}, {layers_, layers_}}) {
    EXPECT_EQ(MakeTestEngine(*model_, range, {.numerics = GetParam()}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const EngineOptions many{.threads = 100000, .numerics = GetParam()};
  EXPECT_EQ(MakeTestEngine(*model_, {0, 1}, many).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Numerics, DecoderEngineTest, ::testing::ValuesIn(TestNumerics()));

}  // namespace
}  // namespace kvmesh::shard

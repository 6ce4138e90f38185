// What is refused of a store's answer, byte by byte.
#include "services/shard/core/restore_reader.h"

#include <gtest/gtest.h>

#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

// One slab of 40 tokens of layers 1:4, and a reader that wants 30 of them of layers 2 and 3.
class RestoreReaderTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kWanted = 30;

  RestoreReaderTest() {
    StepItem item{.state = &stored_, .tokens = tokens_, .hidden = hidden_};
    stored_ = engine_.NewState();
    engine_.Step(absl::MakeSpan(&item, 1));
    EXPECT_TRUE(item.status.ok()) << item.status;
    SaveJob job{
        .snapshot = {.cache_namespace = ToyNamespace(), .layers = {1, 4}, .tokens = tokens_}};
    job.snapshot.state.resize(6);
    for (uint32_t layer = 1; layer < 4; ++layer) {
      job.snapshot.state[layer] = *stored_[layer]->Snapshot(tokens_.size());
    }
    file_ = SlabOf(job, ToyFacts(engine_), Write(3));
    read_ = {.slab = RefOf(file_), .layers = {2, 3}};
  }

  RestoreReader Reader(uint32_t wanted = kWanted) {
    state_ = engine_.NewState();
    return RestoreReader({.read = read_,
                          .cache_namespace = namespace_,
                          .tokens = absl::MakeConstSpan(tokens_).first(wanted),
                          .kv_dtype = dtype_,
                          .vocabulary = vocabulary_,
                          .state = state_},
                         file_.size());
  }
  // The fault that reading `answer` in parts of `step` bytes ends with; nothing: none.
  std::optional<RestoreFault> Fault(const std::string& answer, size_t step = 1 << 20) {
    RestoreReader reader = Reader();
    for (size_t at = 0; at < answer.size(); at += step) {
      if (auto failure = reader.Append(absl::string_view(answer).substr(at, step))) {
        EXPECT_EQ(failure->slab, read_.slab);
        return failure->fault;
      }
    }
    const auto failure = reader.Finish();
    return failure.has_value() ? std::optional(failure->fault) : std::nullopt;
  }
  std::string Answer() const { return AnswerOf(file_, read_.layers, kWanted); }
  std::string Rows(const SessionState& state, uint32_t layer, uint64_t count) const {
    const uint64_t half = count * state[layer]->row_bytes();
    std::string rows(2 * half, '\0');
    auto* bytes = reinterpret_cast<uint8_t*>(rows.data());
    EXPECT_TRUE(
        state[layer]
            ->CopyRows(0, count, absl::MakeSpan(bytes, half), absl::MakeSpan(bytes + half, half))
            .ok());
    return rows;
  }

  testing::ToyEngine engine_{{.layers = {1, 4}}};
  testing::ToyVocabulary vocabulary_;
  std::vector<uint32_t> tokens_ = testing::ToyGenerate({5, 6, 7, 8}, 40);
  std::vector<float> hidden_ = std::vector<float>(40 * testing::kToyHiddenSize, 0.0F);
  SessionState stored_;
  SessionState state_;
  std::string file_;
  SlabRead read_;
  forward::CacheNamespace namespace_ = ToyNamespace();
  slab::DType dtype_ = slab::DType::kF32;
};

TEST_F(RestoreReaderTest, FillsTheLayersWantedWithTheTokensWantedHoweverTheBytesCome) {
  for (const size_t step : {1, 7, 4096, 1 << 20}) {
    ASSERT_EQ(Fault(Answer(), step), std::nullopt) << step;
    for (const uint32_t layer : {2, 3}) {
      EXPECT_EQ(state_[layer]->tokens(), kWanted);
      EXPECT_EQ(Rows(state_, layer, kWanted), Rows(stored_, layer, kWanted));
    }
    EXPECT_EQ(state_[1]->tokens(), 0u);
  }
}

TEST_F(RestoreReaderTest, EveryFlippedBitIsFound) {
  const std::string answer = Answer();
  for (size_t at = 0; at < answer.size(); at += at < 2000 ? 1 : 97) {
    // What stores rewrite in place lies outside every CRC.
    if ((at >= 12 && at < 16) || (at >= 32 && at < 40)) continue;
    std::string broken = answer;
    broken[at] = static_cast<char>(broken[at] ^ 4);
    EXPECT_NE(Fault(broken), std::nullopt) << at;
  }
}

TEST_F(RestoreReaderTest, AnAnswerThatIsTooShortOrTooLongIsCorrupt) {
  const std::string answer = Answer();
  EXPECT_EQ(Fault(answer.substr(0, answer.size() - 1)), RestoreFault::kCorrupt);
  EXPECT_EQ(Fault(answer + "x"), RestoreFault::kCorrupt);
  EXPECT_EQ(Fault(""), RestoreFault::kCorrupt);
}

TEST_F(RestoreReaderTest, AnotherSlabThanTheOneNamedIsRefused) {
  const SlabRead named = read_;
  read_.slab.write_id = Write(4);
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongSlab);
  read_ = named;
  read_.slab.key = Sha256Of("another");
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongSlab);
  read_ = named;
  read_.slab.tokens_sha256 = Sha256Of("another");
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongSlab);
  read_ = named;
  read_.slab.layers = {1, 5};
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongSlab);
  read_ = named;
  namespace_.quant = "other";
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongSlab);
}

TEST_F(RestoreReaderTest, OtherIdsThanTheHistorysAreRefusedAlsoWhenTheyComeLater) {
  tokens_[29] = (tokens_[29] + 1) % testing::kToyEos;
  EXPECT_EQ(Fault(Answer()), RestoreFault::kTokensDiffer);
}

TEST_F(RestoreReaderTest, IdsBehindWhatIsWantedNeedNotAgree) {
  tokens_[30] = (tokens_[30] + 1) % testing::kToyEos;
  EXPECT_EQ(Fault(Answer()), std::nullopt);
}

TEST_F(RestoreReaderTest, MoreTokensThanTheSlabHasAreRefused) {
  std::vector<uint32_t> more = tokens_;
  more.push_back(1);
  const std::string answer = Answer();
  tokens_ = more;
  RestoreReader reader = Reader(41);
  const auto failure = reader.Append(answer);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RestoreFault::kTokensDiffer);
}

TEST_F(RestoreReaderTest, StateOfAnotherTypeIsRefused) {
  dtype_ = slab::DType::kF16;
  EXPECT_EQ(Fault(Answer()), RestoreFault::kWrongState);
}

// A vocabulary that spells one id otherwise.
class OtherVocabulary final : public Vocabulary {
 public:
  std::string Piece(uint32_t id) const override { return toy_.Piece(id); }
  std::string KeyBytes(uint32_t id) const override { return id == 8 ? "!!" : toy_.KeyBytes(id); }
  bool IsEndOfSequence(uint32_t id) const override { return toy_.IsEndOfSequence(id); }

 private:
  testing::ToyVocabulary toy_;
};

TEST_F(RestoreReaderTest, IdsThatDoNotSpellTheTextAreRefused) {
  tokens_[3] = 8;
  StepItem item{.state = &stored_, .tokens = tokens_, .hidden = hidden_};
  stored_ = engine_.NewState();
  engine_.Step(absl::MakeSpan(&item, 1));
  SaveJob job{.snapshot = {.cache_namespace = ToyNamespace(), .layers = {1, 4}, .tokens = tokens_}};
  job.snapshot.state = std::move(stored_);
  file_ = SlabOf(job, ToyFacts(engine_), Write(3));
  read_.slab = RefOf(file_);
  EXPECT_EQ(Fault(Answer()), std::nullopt);
  const OtherVocabulary other;
  state_ = engine_.NewState();
  RestoreReader reader({.read = read_,
                        .cache_namespace = namespace_,
                        .tokens = absl::MakeConstSpan(tokens_).first(kWanted),
                        .kv_dtype = dtype_,
                        .vocabulary = other,
                        .state = state_},
                       file_.size());
  const auto failure = reader.Append(Answer());
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RestoreFault::kCorrupt);
}

}  // namespace
}  // namespace kvmesh::shard

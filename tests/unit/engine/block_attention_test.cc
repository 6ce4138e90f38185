// Attention over blocks: against float64 within a derived bound, and the same bits however the
// work is cut.
#include "services/shard/engine/block_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/engine/kernel_testing.h"

namespace kvmesh::shard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr KvDtype kDtypes[] = {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32};

// Keys and values of one session, and a query for every position.
class Session {
 public:
  Session(const KeyValueLayout& layout, size_t heads, size_t tokens, float query_scale = 2.0f)
      : layout_(layout),
        heads_(heads),
        tokens_(tokens),
        queries_(RandomFloats(tokens * heads * layout.head_dim, 1, query_scale)),
        state_(layout, BlockPool::Make(layout.block_bytes())) {
    state_.Reserve(tokens);
    const size_t row = layout.kv_heads * layout.head_dim;
    keys_ = RandomFloats(tokens * row, 2);
    values_ = RandomFloats(tokens * row, 3);
    for (size_t token = 0; token < tokens; ++token) Put(token);
  }

  // Writes the rows of `token`, after rounding them in place.
  void Put(size_t token) {
    const size_t row = layout_.kv_heads * layout_.head_dim;
    const auto type = static_cast<size_t>(layout_.dtype);
    std::vector<uint8_t> stored[2];
    for (int i = 0; i < 2; ++i) {
      float* x = (i == 0 ? keys_ : values_).data() + token * row;
      stored[i].resize(layout_.row_bytes());
      kStepKernelsAvx2.round[type](x, row, stored[i].data());
      kStepKernelsAvx2.widen[type](stored[i].data(), row, x);
    }
    state_.Put(token, stored[0].data(), stored[1].data());
  }

  std::vector<LayerRow> Rows(size_t begin, size_t end) {
    std::vector<LayerRow> rows;
    rows.reserve(end - begin);
    for (size_t position = begin; position < end; ++position) {
      rows.push_back({.position = position, .state = &state_});
    }
    return rows;
  }

  // The outputs of positions [begin, end) in one run.
  std::vector<float> Attend(BlockAttention& attention, size_t begin, size_t end) {
    std::vector<float> out((end - begin) * row_size());
    attention.Run(Rows(begin, end), query(begin), out.data());
    return out;
  }

  // The outputs of positions [begin, end), `step` at a time.
  std::vector<float> AttendInPieces(BlockAttention& attention, size_t begin, size_t end,
                                    size_t step) {
    std::vector<float> all;
    for (size_t from = begin; from < end; from += step) {
      const std::vector<float> piece = Attend(attention, from, std::min(from + step, end));
      all.insert(all.end(), piece.begin(), piece.end());
    }
    return all;
  }

  // The largest ratio of an output's error to its bound. With u the unit roundoff: a score of
  // head_dim + 1 products is off by at most (head_dim + 2) u S, where S sums their magnitudes; its
  // exponential by that, by u times its distance from the highest, and by 4 u; so is each factor of
  // a fold. The sums of weights and of weighted values add at most (tokens + 2) u, and so does the
  // division; a weight's error counts in both. Keys and values are as rounded.
  double WorstErrorOverBound(const std::vector<float>& got, size_t position) const;

  float* query(size_t position) { return queries_.data() + position * row_size(); }
  size_t row_size() const { return heads_ * layout_.head_dim; }
  std::vector<float>& values() { return values_; }
  size_t tokens() const { return tokens_; }

 private:
  double ErrorOverBound(const float* got, size_t position, size_t head) const;

  const KeyValueLayout layout_;
  const size_t heads_;
  const size_t tokens_;
  std::vector<float> queries_;        // [tokens, heads, head_dim]
  std::vector<float> keys_, values_;  // [tokens, kv_heads, head_dim], rounded
  KeyValueState state_;
};

double Session::WorstErrorOverBound(const std::vector<float>& got, size_t position) const {
  double worst = 0;
  for (size_t head = 0; head < heads_; ++head) {
    worst = std::max(worst, ErrorOverBound(got.data() + head * layout_.head_dim, position, head));
  }
  return worst;
}

double Session::ErrorOverBound(const float* got, size_t position, size_t head) const {
  const size_t dim = layout_.head_dim;
  const size_t row = layout_.kv_heads * dim;
  const size_t kv_head = head / (heads_ / layout_.kv_heads);
  const float* query = queries_.data() + position * row_size() + head * dim;
  std::vector<double> weights(position + 1);
  double highest = -1e300;
  double lowest = 1e300;
  double magnitude = 0;  // S
  for (size_t token = 0; token <= position; ++token) {
    double score = 0;
    double size = 0;
    for (size_t i = 0; i < dim; ++i) {
      const double product = static_cast<double>(query[i]) * keys_[token * row + kv_head * dim + i];
      score += product / std::sqrt(static_cast<double>(dim));
      size += std::abs(product) / std::sqrt(static_cast<double>(dim));
    }
    weights[token] = score;
    highest = std::max(highest, score);
    lowest = std::min(lowest, score);
    magnitude = std::max(magnitude, size);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  const double folds = static_cast<double>(position / kAttentionChunk + 1);
  const double of_weight = (static_cast<double>(dim) + 2) * magnitude +
                           (highest - lowest) * (1 + folds) + 4 * (1 + 2 * folds);
  const double of_sums = 2 * (static_cast<double>(position) + 4);
  double worst = 0;
  for (size_t i = 0; i < dim; ++i) {
    double want = 0;
    double largest = 0;
    for (size_t token = 0; token <= position; ++token) {
      const double value = values_[token * row + kv_head * dim + i];
      want += weights[token] / sum * value;
      largest = std::max(largest, std::abs(value));
    }
    const double bound = (2 * of_weight + of_sums) * kRoundoff * largest + 1e-30;
    const double error = std::abs(got[i] - want);
    worst = std::max(worst, std::isfinite(got[i]) ? error / bound : 1e300);
  }
  return worst;
}

class BlockAttentionTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!MissingFeatures(GetParam()).empty()) GTEST_SKIP() << "not on this processor";
  }
  BlockAttention Make(const KeyValueLayout& layout, size_t heads) {
    return {pool_, StepKernelsOf(GetParam()), layout, heads};
  }
  ComputePool pool_{2, [] {}};
};

TEST_P(BlockAttentionTest, IsWithinItsBoundOfFloat64OnBothSidesOfEveryBoundary) {
  for (const KvDtype dtype : kDtypes) {
    for (const size_t head_dim : {5u, 16u, 64u, 80u}) {
      const KeyValueLayout layout{.kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
      Session session(layout, 6, 600);
      BlockAttention attention = Make(layout, 6);
      for (const size_t tokens : {1u, 15u, 16u, 17u, 63u, 64u, 65u, 255u, 256u, 257u, 513u, 600u}) {
        const auto got = session.Attend(attention, tokens - 1, tokens);
        EXPECT_LE(session.WorstErrorOverBound(got, tokens - 1), 1)
            << NameOf(dtype) << ", head_dim " << head_dim << ", tokens " << tokens;
      }
    }
  }
}

TEST_P(BlockAttentionTest, APositionHasTheSameBitsInAnyPieceOfAPrefillAndInDecode) {
  for (const KvDtype dtype : kDtypes) {
    for (const size_t heads : {2u, 4u, 6u, 14u, 16u}) {  // 1, 2, 3, 7, 8 to a key head
      const KeyValueLayout layout{.kv_heads = 2, .head_dim = 20, .dtype = dtype};
      Session session(layout, heads, 540);
      BlockAttention attention = Make(layout, heads);
      const auto whole = session.Attend(attention, 0, 540);
      for (const size_t piece : {1u, 7u, 64u, 512u}) {
        EXPECT_TRUE(SameBits(session.AttendInPieces(attention, 0, 540, piece), whole))
            << NameOf(dtype) << ", " << heads << " heads, pieces of " << piece;
      }
    }
  }
}

TEST_P(BlockAttentionTest, ThreadsDoNotChangeABit) {
  const KeyValueLayout layout{.kv_heads = 2, .head_dim = 32};
  Session session(layout, 6, 700);
  BlockAttention attention = Make(layout, 6);
  const auto want = session.Attend(attention, 0, 700);
  for (const uint32_t threads : {1u, 3u}) {
    ComputePool pool(threads, [] {});
    BlockAttention other(pool, StepKernelsOf(GetParam()), layout, 6);
    EXPECT_TRUE(SameBits(session.Attend(other, 0, 700), want)) << threads << " threads";
    EXPECT_TRUE(SameBits(session.AttendInPieces(other, 0, 700, 1), want)) << threads << " threads";
  }
}

TEST_P(BlockAttentionTest, SessionsInOneBatchHaveTheBitsOfEachAlone) {
  const KeyValueLayout layout{.kv_heads = 1, .head_dim = 16};
  const size_t lengths[] = {1, 40, 300, 64, 257};
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<LayerRow> rows;
  std::vector<float> queries;
  std::vector<float> want;
  BlockAttention attention = Make(layout, 3);
  for (const size_t length : lengths) {
    Session& session = *sessions.emplace_back(std::make_unique<Session>(layout, 3, length));
    // Decode rows and pieces of a prefill, in turn.
    const size_t begin = sessions.size() % 2 == 0 ? length / 2 : length - 1;
    const auto session_rows = session.Rows(begin, length);
    rows.insert(rows.end(), session_rows.begin(), session_rows.end());
    queries.insert(queries.end(), session.query(begin),
                   session.query(begin) + session_rows.size() * session.row_size());
    const auto alone = session.AttendInPieces(attention, begin, length, 1);
    want.insert(want.end(), alone.begin(), alone.end());
  }
  std::vector<float> got(want.size());
  attention.Run(rows, queries.data(), got.data());
  EXPECT_TRUE(SameBits(got, want));
}

TEST_P(BlockAttentionTest, NanInAPositionDoesNotReachTheOnesBefore) {
  const KeyValueLayout layout{.kv_heads = 1, .head_dim = 16};
  Session session(layout, 3, 300);
  BlockAttention attention = Make(layout, 3);
  const auto before = session.Attend(attention, 0, 300);
  session.values()[271 * 16 + 3] = kNan;
  session.Put(271);
  session.query(280)[5] = kNan;  // of head 0
  const auto after = session.Attend(attention, 0, 300);
  const size_t row = session.row_size();
  EXPECT_TRUE(SameBits({before.begin(), before.begin() + static_cast<ptrdiff_t>(271 * row)},
                       {after.begin(), after.begin() + static_cast<ptrdiff_t>(271 * row)}));
  for (size_t position = 271; position < 300; ++position) {
    for (size_t i = 0; i < row; ++i) {
      const bool is_nan = i % 16 == 3 || (position == 280 && i < 16);
      EXPECT_EQ(std::isnan(after[position * row + i]), is_nan) << position << ", " << i;
    }
  }
}

TEST_P(BlockAttentionTest, HugeScoresDoNotOverflow) {
  const KeyValueLayout layout{.kv_heads = 1, .head_dim = 16};
  Session session(layout, 1, 300, 1e6f);
  BlockAttention attention = Make(layout, 1);
  for (const float value : session.Attend(attention, 0, 300)) EXPECT_LE(std::abs(value), 1.0001f);
}

INSTANTIATE_TEST_SUITE_P(Sets, BlockAttentionTest, ::testing::ValuesIn(kInstructionSets));

TEST(BlockAttention, EverySetGivesTheSameBits) {
  ComputePool pool(1, [] {});
  for (const KvDtype dtype : kDtypes) {
    const KeyValueLayout layout{.kv_heads = 2, .head_dim = 80, .dtype = dtype};
    Session session(layout, 10, 520);
    std::vector<float> want;
    for (const InstructionSet set : kInstructionSets) {
      if (!MissingFeatures(set).empty()) continue;
      BlockAttention attention(pool, StepKernelsOf(set), layout, 10);
      const auto got = session.Attend(attention, 0, 520);
      if (want.empty()) want = got;
      EXPECT_TRUE(SameBits(got, want)) << NameOf(set) << ", " << NameOf(dtype);
    }
  }
}

}  // namespace
}  // namespace kvmesh::shard

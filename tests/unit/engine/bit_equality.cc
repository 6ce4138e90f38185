#include "tests/unit/engine/bit_equality.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {
namespace {

bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

absl::StatusOr<SequenceBits> RunStateless(EngineChain& chain, const std::vector<uint32_t>& tokens) {
  KVMESH_ASSIGN_OR_RETURN(FedRows fed, chain.FeedStateless(tokens));
  SequenceBits bits;
  bits.hidden = std::move(fed.stage_hidden.back());
  bits.logits.resize(tokens.size());
  bits.logits.back() = std::move(fed.logits);
  return bits;
}

void ExpectSame(const absl::StatusOr<SequenceBits>& got, const SequenceBits& want,
                const std::string& way) {
  ASSERT_TRUE(got.ok()) << way << ": " << got.status();
  EXPECT_EQ(FirstDifference(*got, want), "") << way;
}

// One session's rows of one step.
struct Mate {
  SessionState state;
  std::vector<uint32_t> tokens;
};

}  // namespace

absl::StatusOr<SequenceBits> RunInPieces(EngineChain& chain, const std::vector<uint32_t>& tokens,
                                         size_t piece) {
  chain.NewSession();
  SequenceBits bits;
  bits.logits.resize(tokens.size());
  for (size_t begin = 0; begin < tokens.size(); begin += piece) {
    const size_t end = std::min(begin + piece, tokens.size());
    KVMESH_ASSIGN_OR_RETURN(FedRows fed,
                            chain.Feed({tokens.begin() + static_cast<ptrdiff_t>(begin),
                                        tokens.begin() + static_cast<ptrdiff_t>(end)}));
    const std::vector<float>& rows = fed.stage_hidden.back();
    bits.hidden.insert(bits.hidden.end(), rows.begin(), rows.end());
    bits.logits[end - 1] = std::move(fed.logits);
  }
  return bits;
}

std::string FirstDifference(const SequenceBits& got, const SequenceBits& want) {
  if (got.hidden.size() != want.hidden.size() || got.logits.size() != want.logits.size()) {
    return "another number of rows";
  }
  if (got.logits.empty() || got.logits.back().empty()) return "nothing to compare";
  const size_t width = got.hidden.size() / got.logits.size();
  for (size_t row = 0; row < got.logits.size(); ++row) {
    if (!SameBits(got.hidden.data() + row * width, want.hidden.data() + row * width, width)) {
      return absl::StrCat("the hidden row of position ", row);
    }
    const std::vector<float>& a = got.logits[row];
    const std::vector<float>& b = want.logits[row];
    if (a.empty() || b.empty()) continue;
    if (a.size() != b.size() || !SameBits(a.data(), b.data(), a.size())) {
      return absl::StrCat("the logits of position ", row);
    }
  }
  return "";
}

std::vector<uint32_t> CutsOf(uint32_t layers, uint32_t shards) {
  std::vector<uint32_t> cuts;
  for (uint32_t shard = 1; shard < shards; ++shard) cuts.push_back(layers * shard / shards);
  return cuts;
}

std::vector<uint32_t> SomeTokens(size_t count, uint32_t first, uint32_t vocab_size) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>((first + i * 7919) % vocab_size);
  }
  return tokens;
}

absl::StatusOr<SequenceBits> RunAmongOthers(Engine& engine, const std::vector<uint32_t>& tokens,
                                            size_t position, size_t mates, size_t place) {
  const uint32_t vocab_size = engine.info().config.vocab_size;
  std::vector<Mate> sessions(mates + 1);
  std::vector<StepItem> batch(mates + 1);
  for (size_t i = 0; i <= mates; ++i) {
    Mate& mate = sessions[i];
    StepItem& item = batch[i];
    mate.state = engine.NewState();
    std::vector<uint32_t> before(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(position));
    mate.tokens = {tokens[position]};
    if (i != place) {
      before = SomeTokens(i * 5 % 83, static_cast<uint32_t>(i), vocab_size);
      mate.tokens = SomeTokens(i % 4 == 3 ? 9 : 1, static_cast<uint32_t>(i + 1), vocab_size);
    }
    if (!before.empty()) {
      StepItem prefill{.state = &mate.state, .tokens = before};
      engine.Step({&prefill, 1});
      KVMESH_RETURN_IF_ERROR(prefill.status);
    }
    item.state = &mate.state;
    item.past_len = before.size();
    item.tokens = mate.tokens;
    item.want_logits = i == place || i % 2 == 0;
  }
  engine.Step(absl::MakeSpan(batch));
  for (const StepItem& item : batch) KVMESH_RETURN_IF_ERROR(item.status);
  return SequenceBits{.hidden = batch[place].hidden_out, .logits = {batch[place].logits}};
}

void ExpectSameBitsEveryWay(const model::Model& model, const EngineOptions& options,
                            const std::vector<uint32_t>& tokens) {
  const uint32_t layers = model.config().layer_count;
  EngineOptions one_thread = options;
  one_thread.threads = 1;
  EngineOptions two_threads = options;
  two_threads.threads = 2;
  auto base_chain = EngineChain::Make(model, {}, one_thread);
  ASSERT_TRUE(base_chain.ok()) << base_chain.status();
  const auto base = RunInPieces(*base_chain, tokens, tokens.size());
  ASSERT_TRUE(base.ok()) << base.status();
  const auto decoded = RunInPieces(*base_chain, tokens, 1);
  ExpectSame(decoded, *base, "one token at a time");
  for (const size_t piece : {7u, 64u, 512u}) {
    ExpectSame(RunInPieces(*base_chain, tokens, piece), *decoded,
               absl::StrCat("pieces of ", piece));
  }
  ExpectSame(RunStateless(*base_chain, tokens), *base, "stateless");
  for (const uint32_t shards : {1u, 2u, 3u}) {
    if (shards > layers) continue;
    auto chain = EngineChain::Make(model, CutsOf(layers, shards), two_threads);
    ASSERT_TRUE(chain.ok()) << chain.status();
    ExpectSame(RunInPieces(*chain, tokens, 64), *decoded,
               absl::StrCat("two threads, ", shards, " shards"));
    ExpectSame(RunInPieces(*chain, tokens, 1), *decoded,
               absl::StrCat("two threads, ", shards, " shards, one token at a time"));
    if (shards > 1) continue;
    const size_t last = tokens.size() - 1;
    const size_t width = model.config().hidden_size;
    const SequenceBits want{
        .hidden = {base->hidden.end() - static_cast<ptrdiff_t>(width), base->hidden.end()},
        .logits = {base->logits.back()}};
    for (const size_t mates : {1u, 2u, 7u, 64u}) {
      for (const size_t place : {size_t{0}, mates / 2, mates}) {
        ExpectSame(RunAmongOthers(chain->tail(), tokens, last, mates, place), want,
                   absl::StrCat("the ", place, "-th of ", mates, " others"));
      }
    }
  }
}

}  // namespace kvmesh::shard

#include "services/shard/core/edge_checks.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/shard/hop_harness.h"

namespace kvmesh::shard {
namespace {

using forward::CacheMode;
using forward::Compute;
using forward::Open;

const std::vector<uint32_t> kPrompt = {5, 6, 7};

struct OpenCase {
  std::string name;
  std::function<void(Open&)> change;
  std::string reason;  // or the code, where there is none
};

class CheckOpenTest : public ::testing::TestWithParam<OpenCase> {};

TEST_P(CheckOpenTest, TellsWhatIsWrong) {
  HopHarness h({0, 3});
  Open open = h.MakeOpen(1, kPrompt);
  EXPECT_TRUE(CheckOpen(open, h.hop().options()).ok());
  GetParam().change(open);
  const absl::Status status = CheckOpen(open, h.hop().options());
  const std::string reason = ReasonOf(status);
  EXPECT_EQ(reason.empty() ? absl::StatusCodeToString(status.code()) : reason, GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(
    Edges, CheckOpenTest,
    ::testing::ValuesIn(std::vector<OpenCase>{
        {"NoHops", [](Open& o) { o.hops.clear(); }, "INVALID_ARGUMENT"},
        {"OtherInstance", [](Open& o) { o.hops[0].instance = HopHarness::Instance(9); },
         "WRONG_INSTANCE"},
        {"OtherLayers", [](Open& o) { o.hops[0].layers.end = 4; }, "WRONG_LAYERS"},
        {"HopIndex", [](Open& o) { o.hop_index = 1; }, "INVALID_ARGUMENT"},
        {"Gap", [](Open& o) { o.hops[1].layers.begin = 4; }, "INVALID_ARGUMENT"},
        {"Overlap", [](Open& o) { o.hops[1].layers.begin = 2; }, "INVALID_ARGUMENT"},
        {"TooShort", [](Open& o) { o.hops[1].layers.end = 5; }, "INVALID_ARGUMENT"},
        {"TooLong", [](Open& o) { o.hops[1].layers.end = 7; }, "INVALID_ARGUMENT"},
        {"NoNextHop", [](Open& o) { o.hops.pop_back(); }, "INVALID_ARGUMENT"},
        {"ForeignPeer", [](Open& o) { o.hops[1].address = "evil:1"; }, "FORBIDDEN_PEER"},
        {"UnknownFeature", [](Open& o) { o.required_features = {"known", "checkpoints"}; },
         "UNKNOWN_FEATURE"},
        {"OtherQuant", [](Open& o) { o.cache_namespace.quant = "q8/kv-f32"; }, "MODEL_MISMATCH"},
        {"HistoryBeyondContext", [](Open& o) { o.history.assign(201, 1); }, "INVALID_ARGUMENT"},
        {"HistoryId", [](Open& o) { o.history[1] = testing::kToyVocabSize; }, "INVALID_ARGUMENT"},
        {"PromptLongerThanHistory", [](Open& o) { o.prompt_tokens = 4; }, "INVALID_ARGUMENT"},
        {"ReserveBeyondContext", [](Open& o) { o.reserve_tokens = 201; }, "INVALID_ARGUMENT"},
        {"BiasId", [](Open& o) { o.sampling.logit_bias = {{testing::kToyVocabSize, 1.F}}; },
         "INVALID_ARGUMENT"},
        {"KnownFeature", [](Open& o) { o.required_features = {"known"}; }, "OK"},
        {"WholeContext",
         [](Open& o) {
           o.reserve_tokens = 200;
           o.history.assign(200, 1);
         },
         "OK"}}),
    [](const auto& info) { return info.param.name; });

struct ComputeCase {
  std::string name;
  std::function<void(Compute&)> change;
  std::string reason;
  bool stateful_stream = true;
};

class CheckComputeTest : public ::testing::TestWithParam<ComputeCase> {};

// A sound chunk at a shard that is not the first.
TEST_P(CheckComputeTest, TellsWhatIsWrong) {
  HopHarness h({3, 6});
  Compute compute = h.Prefill({1, 2, 3, 4}, 1, 4, true);
  EXPECT_TRUE(CheckCompute(compute, true, h.hop().options()).ok());
  GetParam().change(compute);
  const absl::Status status = CheckCompute(compute, GetParam().stateful_stream, h.hop().options());
  const std::string reason = ReasonOf(status);
  EXPECT_EQ(reason.empty() ? absl::StatusCodeToString(status.code()) : reason, GetParam().reason)
      << status;
}

void MakeStateless(Compute& c) {
  c.cache_mode = CacheMode::kStateless;
  c.past_len.reset();
}

INSTANTIATE_TEST_SUITE_P(Edges, CheckComputeTest,
                         ::testing::ValuesIn(std::vector<ComputeCase>{{"StatelessStream",
                                                                       [](Compute&) {},
                                                                       "INVALID_ARGUMENT", false},
                                                                      {"NoPastLen",
                                                                       [](Compute& c) {
                                                                         c.past_len.reset();
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"NoDigest",
                                                                       [](Compute& c) {
                                                                         c.prefix_digest.reset();
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"PastLenAbsurd",
                                                                       [](Compute& c) {
                                                                         c.past_len = UINT64_MAX;
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"PastLenFits",
                                                                       [](Compute& c) {
                                                                         c.past_len = 197;
                                                                       },
                                                                       "OK"},
                                                                      {"PastLenOneTooFar",
                                                                       [](Compute& c) {
                                                                         c.past_len = 198;
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"IdAtTheEdge",
                                                                       [](Compute& c) {
                                                                         c.tokens[2] =
                                                                             testing::
                                                                                 kToyVocabSize -
                                                                             1;
                                                                       },
                                                                       "OK"},
                                                                      {"IdBeyond",
                                                                       [](Compute& c) {
                                                                         c.tokens[2] =
                                                                             testing::kToyVocabSize;
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"HiddenMissing",
                                                                       [](Compute& c) {
                                                                         c.hidden.clear();
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"HiddenTooLong",
                                                                       [](Compute& c) {
                                                                         c.hidden += "abcd";
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"LayersEmpty",
                                                                       [](Compute& c) {
                                                                         c.layers = {3, 3};
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"LayersBeyond",
                                                                       [](Compute& c) {
                                                                         c.layers = {3, 7};
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"OtherLayersAreAMatterOfTheT"
                                                                       "able",
                                                                       [](Compute& c) {
                                                                         c.layers = {2, 6};
                                                                       },
                                                                       "OK"},
                                                                      {"NoRowsIsAFullHit",
                                                                       [](Compute& c) {
                                                                         c.tokens.clear();
                                                                         c.hidden.clear();
                                                                       },
                                                                       "OK"},
                                                                      {"NoRowsAndNothingHeld",
                                                                       [](Compute& c) {
                                                                         c.tokens.clear();
                                                                         c.hidden.clear();
                                                                         c.past_len = 0;
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"DecodeOfThreeRows",
                                                                       [](Compute& c) {
                                                                         c.cache_mode =
                                                                             CacheMode::kDecode;
                                                                       },
                                                                       "INVALID_ARGUMENT"},
                                                                      {"StatelessSound",
                                                                       MakeStateless, "OK", false},
                                                                      {"StatelessOtherLayers",
                                                                       [](Compute& c) {
                                                                         MakeStateless(c);
                                                                         c.layers = {2, 6};
                                                                       },
                                                                       "WRONG_LAYERS", false},
                                                                      {"StatelessWithPastLen",
                                                                       [](Compute& c) {
                                                                         c.cache_mode =
                                                                             CacheMode::kStateless;
                                                                       },
                                                                       "INVALID_ARGUMENT", false},
                                                                      {"StatelessWithoutAnAnswer",
                                                                       [](Compute& c) {
                                                                         MakeStateless(c);
                                                                         c.want_logits = false;
                                                                       },
                                                                       "INVALID_ARGUMENT", false}}),
                         [](const auto& info) { return info.param.name; });

TEST(CheckCompute, AStatelessFrameMustFitIntoOneMessageToTheNextHop) {
  HopHarness h({0, 3});
  HopOptions options = h.hop().options();
  options.hidden_size = 1 << 20;  // 4 MiB a row
  Compute compute = h.Frame(CacheMode::kStateless, {1, 2, 3, 4, 5, 6, 7}, 0, 6, 0, true);
  EXPECT_TRUE(CheckCompute(compute, false, options).ok());
  compute.tokens.push_back(7);
  EXPECT_EQ(CheckCompute(compute, false, options).code(), absl::StatusCode::kInvalidArgument);
  options.layers = compute.layers = {0, HopHarness::kLayers};  // nothing is sent on
  EXPECT_TRUE(CheckCompute(compute, false, options).ok());
}

TEST(CheckCompute, TheFirstHopTakesNoRows) {
  HopHarness h({0, 3});
  Compute compute = h.Prefill({1, 2}, 0, 2, true);
  EXPECT_TRUE(CheckCompute(compute, true, h.hop().options()).ok());
  compute.hidden.assign(2 * testing::kToyHiddenSize * sizeof(float), '\0');
  EXPECT_EQ(CheckCompute(compute, true, h.hop().options()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvmesh::shard

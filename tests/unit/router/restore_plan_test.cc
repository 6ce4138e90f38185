// The search for stored state: what is asked, in which order, and that every lease ends.
#include "services/router/core/restore_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/fake_tokenizer.h"
#include "tests/unit/router/checkpoint_testing.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RestorePlannerTest : public ::testing::Test {
 protected:
  RestorePlannerTest() {
    options_.layer_count = 8;
    options_.gates.restore_min_tokens = 4;
  }

  // A prompt of so many letters 'a'.
  void Begin(size_t tokens = 10, std::optional<Sha256Digest> parent = std::nullopt) {
    prompt_ = std::make_shared<const PromptText>(
        MakePromptText(std::vector<uint32_t>(tokens, 0), tokenizer_));
    planner_.Begin({.hops = {{0, 4}, {4, 8}},
                    .prompt = prompt_,
                    .parent_key = parent,
                    .exact_tokens = exact_tokens_,
                    .tokens_max = 100},
                   now_);
  }
  template <typename E>
  E Take() {
    return TakeOnly<E>(effects_);
  }
  // Answers the look-up with a row that ends at the cut unless `row_tokens` says otherwise.
  ReadCheckpoint Find(uint64_t cut_tokens, uint64_t row_tokens = 0) {
    const auto lookup = Take<LookupRow>();
    lease_ = lookup.lease;
    planner_.OnLookup(lookup.call, Row(lookup.lease, cut_tokens, row_tokens), now_);
    return Take<ReadCheckpoint>();
  }
  static std::optional<FoundRow> Row(const LeaseId& lease, uint64_t cut_tokens,
                                     uint64_t row_tokens = 0) {
    return FoundRow{.lease = lease,
                    .cut_tokens = cut_tokens,
                    .cut_text_bytes = cut_tokens,
                    .row_tokens = std::max(row_tokens, cut_tokens),
                    .slabs = {Slab({0, 4}), Slab({4, 8})}};
  }
  CheckpointRead Joined(uint64_t stored, bool has_output_row = true) const {
    return {.seam = {.ids = prompt_->ids, .stored_tokens = stored},
            .has_output_row = has_output_row};
  }
  void Read(uint64_t cut_tokens, uint64_t row_tokens = 0, bool has_output_row = true) {
    planner_.OnCheckpoint(Find(cut_tokens, row_tokens).call, Joined(cut_tokens, has_output_row),
                          now_);
  }

  const testing::FakeTokenizer tokenizer_ = testing::LetterTokenizer();
  CheckpointOptions options_;
  bool exact_tokens_ = false;
  Effects effects_;
  HoldIds ids_{SessionId()};
  RestorePlanner planner_{options_, ids_, effects_};
  std::shared_ptr<const PromptText> prompt_;
  MonoTime now_ = absl::Seconds(50);
  LeaseId lease_;
};

TEST_F(RestorePlannerTest, AHitIsPinnedReadAtTheTailsSlabAndChosen) {
  Begin();
  const ReadCheckpoint read = Find(6);
  EXPECT_EQ(read.slab, Slab({4, 8}).ref);
  EXPECT_EQ(read.cut_tokens, 6u);
  planner_.OnCheckpoint(read.call, Joined(6), now_);
  EXPECT_FALSE(planner_.running());
  ASSERT_TRUE(planner_.choice().has_value());
  EXPECT_EQ(planner_.choice()->restore_tokens, 6u);
  EXPECT_FALSE(planner_.choice()->full_hit);
  EXPECT_THAT(planner_.choice()->hop_slabs, SizeIs(2));
  EXPECT_EQ(planner_.lease(), lease_);
  planner_.Taken();
  EXPECT_EQ(Take<EndLease>().lease, lease_);
  EXPECT_FALSE(planner_.lease().has_value());
}

TEST_F(RestorePlannerTest, AMissIsColdForNoRow) {
  Begin();
  planner_.OnLookup(Take<LookupRow>().call, std::optional<FoundRow>(), now_);
  EXPECT_FALSE(planner_.running());
  EXPECT_EQ(planner_.cold_cause(), "no_row");
  EXPECT_THAT(effects_, IsEmpty());
}

TEST_F(RestorePlannerTest, APromptBelowTheGateIsNotLookedUp) {
  Begin(3);
  EXPECT_FALSE(planner_.running());
  EXPECT_EQ(planner_.cold_cause(), "too_short");
  EXPECT_THAT(effects_, IsEmpty());
  Begin(4);
  EXPECT_EQ(Take<LookupRow>().token_count_min, 4u);
}

TEST_F(RestorePlannerTest, AWholeRowWithItsOutputRowIsAFullHit) {
  Begin();
  Read(10);
  EXPECT_TRUE(planner_.choice()->full_hit);
  EXPECT_EQ(planner_.choice()->restore_tokens, 10u);
}

TEST_F(RestorePlannerTest, ACoveredPromptWithoutTheOutputRowRestoresOneTokenLess) {
  Begin();
  Read(10, 10, /*has_output_row=*/false);
  EXPECT_FALSE(planner_.choice()->full_hit);
  EXPECT_EQ(planner_.choice()->restore_tokens, 9u);
  // So does an inner cut point: the row's own output row is of later tokens.
  Begin();
  Take<EndLease>();
  Read(10, 20);
  EXPECT_FALSE(planner_.choice()->full_hit);
  EXPECT_EQ(planner_.choice()->restore_tokens, 9u);
}

TEST_F(RestorePlannerTest, ABadSlabIsNamedAndTheNextShorterRowTriedTwice) {
  Begin();
  for (const uint64_t cut : {9u, 7u, 5u}) {
    planner_.OnCheckpoint(Find(cut).call, absl::DataLossError("crc"), now_);
    const std::vector<EndLease> ends = TakeAll<EndLease>(effects_);
    ASSERT_THAT(ends, SizeIs(1));
    EXPECT_EQ(ends[0].lease, lease_);
    EXPECT_THAT(ends[0].bad_slabs, ElementsAre(Slab({4, 8}).ref));
    if (cut == 5) break;
    ASSERT_TRUE(planner_.running());
    EXPECT_EQ(Peek<LookupRow>(effects_).text_bytes_max, cut - 1);
  }
  EXPECT_FALSE(planner_.running());
  EXPECT_EQ(planner_.cold_cause(), "restore_failed:bad_slab");
}

TEST_F(RestorePlannerTest, ASeamThatDoesNotJoinIsNobodysFault) {
  Begin();
  planner_.OnCheckpoint(Find(9).call, absl::FailedPreconditionError("spells other text"), now_);
  EXPECT_THAT(Take<EndLease>().bad_slabs, IsEmpty());
  planner_.OnLookup(Take<LookupRow>().call, std::optional<FoundRow>(), now_);
  EXPECT_EQ(planner_.cold_cause(), "restore_failed:seam");
}

TEST_F(RestorePlannerTest, TheLongestRowsFaultIsTheCauseWhateverTheNextOnesHave) {
  Begin();
  Read(9);
  planner_.Failed("corrupt", SlabName(Slab({0, 4}).ref), now_);
  effects_.erase(effects_.begin());  // the lease's end
  planner_.OnCheckpoint(Find(7).call, absl::NotFoundError("quarantined meanwhile"), now_);
  effects_.erase(effects_.begin());
  Find(5);
  now_ = planner_.NextTimer();
  planner_.Tick(now_);
  EXPECT_FALSE(planner_.running());
  EXPECT_EQ(planner_.cold_cause(), "restore_failed:corrupt");
}

TEST_F(RestorePlannerTest, DriftIsAMissWhereExactTokensAreRequired) {
  for (const bool exact : {false, true}) {
    exact_tokens_ = exact;
    Begin();
    CheckpointRead drifted = Joined(6);
    drifted.seam.ids[0] = 1;
    drifted.seam.drifted_tokens = 1;
    planner_.OnCheckpoint(Find(6).call, drifted, now_);
    EXPECT_EQ(planner_.choice().has_value(), !exact);
    EXPECT_EQ(planner_.running(), exact);
    planner_.Cancel();
    effects_.clear();
  }
}

TEST_F(RestorePlannerTest, EffectiveIdsBeyondTheContextAreAMiss) {
  Begin();
  CheckpointRead longer = Joined(6);
  longer.seam.ids.resize(101);
  planner_.OnCheckpoint(Find(6).call, longer, now_);
  EXPECT_FALSE(planner_.choice().has_value());
}

TEST_F(RestorePlannerTest, TheParentIsWaitedForOnceThenLookedUpWhateverItsAnswer) {
  Begin(10, Sha256Digest());
  const auto parent = Take<AwaitParent>();
  EXPECT_EQ(parent.wait, absl::Milliseconds(500));
  now_ += absl::Milliseconds(300);
  planner_.OnParent(parent.call, now_);
  EXPECT_EQ(Take<LookupRow>().timeout, absl::Milliseconds(500));
}

TEST_F(RestorePlannerTest, AParentsAnswerThatDoesNotComeIsNotWaitedForLonger) {
  Begin(10, Sha256Digest());
  Take<AwaitParent>();
  EXPECT_EQ(planner_.NextTimer(), now_ + absl::Milliseconds(500));
  now_ = planner_.NextTimer();
  planner_.Tick(now_);
  Take<LookupRow>();
}

TEST_F(RestorePlannerTest, AnArbiterThatIsAwayOrSlowMeansColdAndIsNamed) {
  Begin();
  planner_.OnLookup(Take<LookupRow>().call, absl::UnavailableError("connection refused"), now_);
  EXPECT_EQ(planner_.cold_cause(), "disabled: meta unavailable");
  EXPECT_THAT(effects_, IsEmpty());

  Begin();
  const auto lookup = Take<LookupRow>();
  EXPECT_EQ(lookup.timeout, absl::Milliseconds(500));
  now_ = planner_.NextTimer();
  planner_.Tick(now_);
  EXPECT_FALSE(planner_.running());
  EXPECT_EQ(planner_.cold_cause(), "disabled: meta unavailable");
  EXPECT_EQ(Take<EndLease>().lease, lookup.lease);
  // The late hit pins nothing either.
  planner_.OnLookup(lookup.call, Row(lookup.lease, 6), now_);
  EXPECT_EQ(Take<EndLease>().lease, lookup.lease);
  EXPECT_FALSE(planner_.choice().has_value());
}

TEST_F(RestorePlannerTest, ASlowStoreMeansColdAtTheSameDeadline) {
  Begin();
  Find(6);
  now_ = planner_.NextTimer();
  planner_.Tick(now_);
  EXPECT_EQ(planner_.cold_cause(), "restore_failed:slow");
  EXPECT_EQ(Take<EndLease>().lease, lease_);
}

TEST_F(RestorePlannerTest, AHopThatCannotLoadSendsItToTheNextRow) {
  Begin();
  Read(9);
  planner_.Failed("crc", SlabName(Slab({0, 4}).ref), now_);
  EXPECT_TRUE(planner_.running());
  EXPECT_EQ(Peek<LookupRow>(effects_).text_bytes_max, 8u);
  const std::vector<EndLease> ends = TakeAll<EndLease>(effects_);
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_THAT(ends[0].bad_slabs, ElementsAre(Slab({0, 4}).ref));
}

TEST(SlabsFor, CoversARangeFromSlabsOfAnyOtherSplit) {
  const std::vector<StoredSlab> two = {Slab({0, 4}), Slab({4, 8})};
  EXPECT_THAT(*SlabsFor({0, 3}, two), ElementsAre(two[0].ref));
  EXPECT_THAT(*SlabsFor({3, 6}, two), ElementsAre(two[0].ref, two[1].ref));
  EXPECT_TRUE(absl::IsNotFound(SlabsFor({7, 9}, two).status()));
  // Overlapping ones: few of them.
  const std::vector<StoredSlab> three = {Slab({0, 2}), Slab({0, 6}), Slab({4, 8})};
  EXPECT_THAT(*SlabsFor({0, 8}, three), ElementsAre(three[1].ref, three[2].ref));
}

TEST(TokensByTier, AddUpToAllTokens) {
  std::vector<StoredSlab> slabs = {Slab({0, 3}), Slab({3, 8})};
  slabs[1].tier = "disk";
  const std::map<std::string, uint32_t> by_tier = TokensByTier(slabs, 8, 1001);
  EXPECT_EQ(by_tier.at("ram"), 375u);
  EXPECT_EQ(by_tier.at("disk"), 626u);
}

TEST(HoldIds, NoTwoAreAlike) {
  HoldIds ids{SessionId()};
  EXPECT_NE(ids.NextLease(), ids.NextLease());
  EXPECT_NE(ids.NextRequest().bytes(), ids.NextLease().bytes());
  EXPECT_NE(ids.NextCall(), ids.NextCall());
}

}  // namespace
}  // namespace kvmesh::router

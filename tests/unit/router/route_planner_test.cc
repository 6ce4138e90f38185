#include "services/router/core/route_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"

namespace kvmesh::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kLayers = 8;

ModelIdentity Own() {
  return {.layer_count = kLayers,
          .config_digest = Sha256Of("config"),
          .tokenizer_digest = Sha256Of("tokenizer")};
}

// A shard of model `model`, named by its address.
ShardFacts Shard(const std::string& address, uint32_t begin, uint32_t end,
                 const std::string& model = "m") {
  ShardFacts facts{.address = address,
                   .layers = {begin, end},
                   .layer_count = kLayers,
                   .embedding_digest = Sha256Of(model + " embedding"),
                   .head_digest = Sha256Of(model + " head"),
                   .config_digest = Sha256Of("config"),
                   .tokenizer_digest = Sha256Of("tokenizer"),
                   .protocol_version = limits::kProtocolVersion,
                   .quant = "bf16/kv-f32",
                   .numerics_id = "n1",
                   .supports_kv_cache = true,
                   .sessions_max = 8,
                   .context_length = 2048,
                   .hidden_size = 16,
                   .vocab_size = 100};
  facts.instance.mutable_data()[0] = static_cast<uint8_t>(address.back());
  for (uint32_t layer = begin; layer < end; ++layer) {
    facts.layer_digests.push_back(Sha256Of(absl::StrCat(model, " layer ", layer)));
  }
  return facts;
}

std::vector<std::string> Addresses(const absl::StatusOr<RoutePlan>& plan) {
  std::vector<std::string> addresses;
  if (!plan.ok()) return {std::string(plan.status().message())};
  for (const forward::HopRef& hop : plan->hops) addresses.push_back(hop.address);
  return addresses;
}

HopKey KeyOf(const ShardFacts& shard) {
  return {shard.address, shard.instance};
}

TEST(RoutePlanner, AChainCoversAllLayersExactlyOnce) {
  const std::vector<ShardFacts> shards = {Shard("b", 3, 6), Shard("c", 6, 8), Shard("a", 0, 3)};
  const absl::StatusOr<RoutePlan> plan = PlanRoute(shards, Own(), {});
  EXPECT_THAT(Addresses(plan), ElementsAre("a", "b", "c"));
  EXPECT_FALSE(plan->stateless);
  EXPECT_EQ(plan->hidden_size, 16u);
  EXPECT_EQ(plan->layer_digests.size(), kLayers);
}

TEST(RoutePlanner, ALayerThatNobodyServesIsNamed) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 3), Shard("b", 5, 8)};
  const absl::Status status = PlanRoute(shards, Own(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[3,5)"));
  EXPECT_THAT(MissingLayers(shards, Own()), ElementsAre(LayerRange{3, 5}));
}

TEST(RoutePlanner, NoShardAtAllLeavesAllLayersMissing) {
  const absl::Status status = PlanRoute({}, Own(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[0,8)"));
}

TEST(RoutePlanner, RangesThatOnlyOverlapAreNoRoute) {
  const absl::Status status =
      PlanRoute(std::vector<ShardFacts>{Shard("a", 0, 5), Shard("b", 4, 8)}, Own(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("overlap"));
}

TEST(RoutePlanner, ReplicasMayBeSplitDifferently) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 5), Shard("b", 4, 8), Shard("c", 0, 4)};
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("c", "b"));
}

TEST(RoutePlanner, TheLeastLoadedReplicaIsTaken) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 4), Shard("b", 0, 4), Shard("c", 4, 8)};
  shards[0].live_sessions = 3;
  shards[1].live_sessions = 2;
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("b", "c"));
  shards[1].bytes_used = 90;
  shards[1].bytes_max = 100;
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("a", "c"));
}

TEST(RoutePlanner, OfEquallyIdleRoutesTheShorterWins) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 4), Shard("b", 4, 8), Shard("c", 0, 8)};
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("c"));
}

TEST(RoutePlanner, SuspectsAreAvoidedButTakenWhereNothingElseIsLeft) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 8), Shard("b", 0, 4), Shard("c", 4, 8)};
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {.avoid = {KeyOf(shards[0])}})),
              ElementsAre("b", "c"));
  EXPECT_THAT(Addresses(PlanRoute(std::vector<ShardFacts>{shards[0]}, Own(),
                                  {.avoid = {KeyOf(shards[0])}})),
              ElementsAre("a"));
}

TEST(RoutePlanner, ANewInstanceAtASuspectAddressIsWelcome) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8), Shard("b", 0, 8)};
  const HopKey old = KeyOf(shards[0]);
  shards[0].instance.mutable_data()[1] = 1;
  shards[1].live_sessions = 1;
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {.avoid = {old}})), ElementsAre("a"));
}

TEST(RoutePlanner, ADrainingShardIsNoHop) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8)};
  shards[0].draining = true;
  EXPECT_EQ(PlanRoute(shards, Own(), {}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(RoutePlanner, OneHopWithoutACacheMakesTheRouteStatelessAndIsTakenLast) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 4), Shard("b", 4, 8), Shard("c", 4, 8)};
  shards[1].supports_kv_cache = false;
  shards[2].live_sessions = 7;
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("a", "c"));
  shards.pop_back();
  const absl::StatusOr<RoutePlan> plan = PlanRoute(shards, Own(), {});
  EXPECT_THAT(Addresses(plan), ElementsAre("a", "b"));
  EXPECT_TRUE(plan->stateless);
}

TEST(RoutePlanner, AStatelessRequestGetsAStatelessRoute) {
  EXPECT_TRUE(
      PlanRoute(std::vector<ShardFacts>{Shard("a", 0, 8)}, Own(), {.stateless = true})->stateless);
}

TEST(RoutePlanner, TwoQuantsNeverShareARouteAndBothAreShown) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 4), Shard("b", 4, 8)};
  shards[1].quant = "q4_1/kv-f32";
  const absl::Status status = PlanRoute(shards, Own(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), reason::kModelMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bf16/kv-f32"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("q4_1/kv-f32"));
}

TEST(RoutePlanner, TwoNumericsNeverShareARoute) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 4), Shard("b", 4, 8)};
  shards[1].numerics_id = "n2";
  EXPECT_EQ(PlanRoute(shards, Own(), {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RoutePlanner, TwoModelsOfOneShapeNeverShareARoute) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 4, "m"), Shard("b", 4, 8, "other")};
  EXPECT_EQ(PlanRoute(shards, Own(), {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RoutePlanner, AnotherProtocolIsRefusedWithBothVersions) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8)};
  shards[0].protocol_version = 77;
  const absl::Status status = PlanRoute(shards, Own(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), reason::kProtocolMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("77"));
}

TEST(RoutePlanner, AnotherTokenizerOrConfigThanTheRoutersIsRefused) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8)};
  shards[0].tokenizer_digest = Sha256Of("other");
  EXPECT_THAT(WhyUnusable(shards[0], Own()), HasSubstr("tokenizer"));
  EXPECT_EQ(PlanRoute(shards, Own(), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  shards[0] = Shard("a", 0, 8);
  shards[0].config_digest = Sha256Of("other");
  EXPECT_THAT(WhyUnusable(shards[0], Own()), HasSubstr("config"));
}

TEST(RoutePlanner, AMisfitBesideAFullRouteDoesNotHurt) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8), Shard("b", 0, 8)};
  shards[0].config_digest = Sha256Of("other");
  EXPECT_THAT(Addresses(PlanRoute(shards, Own(), {})), ElementsAre("b"));
}

TEST(RoutePlanner, APinnedGenerationWaitsForItsOwnModelQuantAndNumerics) {
  std::vector<ShardFacts> shards = {Shard("a", 0, 8)};
  const RoutePin pin = PlanRoute(shards, Own(), {})->Pin();
  EXPECT_TRUE(PlanRoute(shards, Own(), {.pin = pin}).ok());
  for (const std::string change : {"quant", "numerics", "layers"}) {
    std::vector<ShardFacts> others = {Shard("b", 0, 8, change == "layers" ? "other" : "m")};
    if (change == "quant") others[0].quant = "f16/kv-f32";
    if (change == "numerics") others[0].numerics_id = "n2";
    EXPECT_EQ(PlanRoute(others, Own(), {.pin = pin}).status().code(),
              absl::StatusCode::kUnavailable)
        << change;
  }
}

TEST(RoutePlanner, APinnedGenerationFindsAnotherSplitOfItsModel) {
  const RoutePin pin = PlanRoute(std::vector<ShardFacts>{Shard("a", 0, 8)}, Own(), {})->Pin();
  const std::vector<ShardFacts> shards = {Shard("x", 0, 8, "other"), Shard("b", 0, 2),
                                          Shard("c", 2, 8)};
  const absl::StatusOr<RoutePlan> plan = PlanRoute(shards, Own(), {.pin = pin});
  EXPECT_THAT(Addresses(plan), ElementsAre("b", "c"));
  EXPECT_EQ(plan->cache_namespace.model_fp, pin.model_fp);
}

TEST(RoutePlanner, TheNamespaceSeparatesTenants) {
  const std::vector<ShardFacts> shards = {Shard("a", 0, 8)};
  EXPECT_NE(PlanRoute(shards, Own(), {.tenant_salt = "a"})->cache_namespace.ctx_params_hash,
            PlanRoute(shards, Own(), {.tenant_salt = "b"})->cache_namespace.ctx_params_hash);
}

TEST(RoutePlanner, ContradictoryRangesAreUnusableNotFatal) {
  ShardFacts shard = Shard("a", 0, 8);
  shard.layers.end = 9;
  EXPECT_NE(WhyUnusable(shard, Own()), "");
  shard = Shard("a", 0, 8);
  shard.layer_digests.pop_back();
  EXPECT_NE(WhyUnusable(shard, Own()), "");
  EXPECT_EQ(PlanRoute(std::vector<ShardFacts>{shard}, Own(), {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kvmesh::router

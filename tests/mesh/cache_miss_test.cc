// Every cause of a cache miss, provoked on a mesh of two shards: the client sees the ids of an
// undisturbed run, one miss with that cause is counted, and exactly one re-prefill.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/mesh/mesh_fixture.h"

namespace kvmesh::testing {
namespace {

constexpr uint32_t kStep = 4;  // where things go wrong

bool IsDecode(const v1::ForwardRequest& frame, uint32_t step) {
  return frame.compute().cache_mode() == v1::CACHE_MODE_DECODE && frame.compute().step() == step;
}

class CacheMiss : public ::testing::Test {
 protected:
  void MakeMesh(const std::vector<ShardSetup>& setups) {
    mesh_ = std::make_unique<Mesh>(setups);
    mesh_->AddRouter();
  }

  // Alters the decode frame of one step on its way to a shard, once.
  void AlterOnce(size_t shard, std::function<void(v1::ForwardRequest&)> alter) {
    mesh_->shard(shard).hooks.on_frame = [this, alter](v1::ForwardRequest& frame) {
      if (IsDecode(frame, kStep) && !struck_.exchange(true)) alter(frame);
      return Passage::kPass;
    };
  }

  // Breaks the stream at one step and holds the router's next attempt back. With `keep`, the router
  // seems to end the stream with KEEP instead.
  void CutAndHold(bool keep) {
    mesh_->shard(0).hooks.on_frame = [this, keep](v1::ForwardRequest& frame) {
      if (frame.has_open() && struck_ && !held_.exchange(true)) return Passage::kHold;
      if (!IsDecode(frame, kStep) || struck_.exchange(true)) return Passage::kPass;
      if (!keep) return Passage::kCut;
      frame.mutable_close()->set_disposition(v1::Close::DISPOSITION_KEEP);
      return Passage::kPass;
    };
    answer_ = mesh_->Start(request_);
    ASSERT_TRUE(Eventually([this] { return held_.load(); }));
    const shard::SessionPhase phase =
        keep ? shard::SessionPhase::kIdle : shard::SessionPhase::kOrphaned;
    ASSERT_TRUE(Eventually([&] { return AllHeldAre(phase); }));
  }

  bool AllHeldAre(shard::SessionPhase phase) {
    size_t count = 0;
    for (size_t i = 0; i < mesh_->shards(); ++i) {
      for (const shard::SessionView& session : mesh_->shard(i).Sessions()) {
        if (session.phase != phase) return false;
        ++count;
      }
    }
    return count == 2;  // both hops of the one generation
  }

  void LetGo() { mesh_->shard(0).proxy().Release(); }

  void ExpectOneMiss(size_t shard, const std::string& cause) {
    ExpectSameIds();
    EXPECT_EQ(mesh_->RouterMisses(cause), 1);
    EXPECT_EQ(mesh_->shard(shard).Misses(cause), 1);
    EXPECT_EQ(mesh_->RouterCounter("reprefills_total"), 1);
    EXPECT_TRUE(mesh_->NothingHeld());
  }

  void ExpectSameIds() {
    const Answer answer = answer_.valid() ? answer_.get() : mesh_->Generate(request_);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.ids, Undisturbed(request_));
    EXPECT_EQ(answer.text, ToyText(answer.ids));
  }

  const Request request_;
  std::unique_ptr<Mesh> mesh_;
  std::atomic<bool> struck_ = false;
  std::atomic<bool> held_ = false;
  std::future<Answer> answer_;
};

TEST_F(CacheMiss, NoneInAnUndisturbedRun) {
  MakeMesh(TwoShards());
  ExpectSameIds();
  EXPECT_EQ(mesh_->RouterCounter("reprefills_total"), 0);
  EXPECT_TRUE(mesh_->NothingHeld());
}

TEST_F(CacheMiss, AWrongPastLenIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  AlterOnce(1, [](v1::ForwardRequest& frame) {
    frame.mutable_compute()->set_past_len(frame.compute().past_len() - 1);
  });
  ExpectOneMiss(1, "held");
}

TEST_F(CacheMiss, OtherTokensAreHealedByOnePrefill) {
  MakeMesh(TwoShards());
  AlterOnce(1, [](v1::ForwardRequest& frame) {
    frame.mutable_compute()->set_prefix_digest(frame.compute().prefix_digest() + 1);
  });
  ExpectOneMiss(1, "digest");
}

TEST_F(CacheMiss, OtherLayersAreHealedByOnePrefill) {
  MakeMesh(TwoShards());
  AlterOnce(1, [](v1::ForwardRequest& frame) {
    frame.mutable_compute()->mutable_layers()->set_begin(2);
  });
  ExpectOneMiss(1, "layers");
}

TEST_F(CacheMiss, AStepAheadIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  AlterOnce(1, [](v1::ForwardRequest& frame) { frame.mutable_compute()->set_step(kStep + 1); });
  ExpectOneMiss(1, "step");
}

TEST_F(CacheMiss, AStaleEpochIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  std::atomic<bool> altered = false;
  mesh_->shard(1).hooks.on_frame = [&](v1::ForwardRequest& frame) {
    if (IsDecode(frame, kStep) && !struck_.exchange(true)) return Passage::kCut;
    if (frame.has_open() && struck_ && !altered.exchange(true)) {
      // The state that this hop holds is of the epoch before.
      frame.mutable_open()->set_epoch(frame.open().epoch() + 1);
    }
    return Passage::kPass;
  };
  ExpectOneMiss(1, "epoch");
}

TEST_F(CacheMiss, ASessionPastItsTtlIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  CutAndHold(/*keep=*/true);
  mesh_->shard_clock().Advance(absl::Seconds(590));
  EXPECT_TRUE(AllHeldAre(shard::SessionPhase::kIdle));
  mesh_->shard_clock().Advance(absl::Seconds(15));
  LetGo();
  ExpectOneMiss(0, "evicted_ttl");
}

TEST_F(CacheMiss, AnOrphanPastItsTtlIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  CutAndHold(/*keep=*/false);
  mesh_->shard_clock().Advance(absl::Seconds(31));
  LetGo();
  ExpectOneMiss(0, "evicted_orphan");
}

TEST_F(CacheMiss, ASessionPushedOutByCountIsHealedByOnePrefill) {
  MakeMesh({{.layers = {0, 3}, .sessions_max = 1}, {.layers = {3, 6}, .sessions_max = 1}});
  CutAndHold(/*keep=*/false);
  const Request other{.prompt = "another"};
  EXPECT_EQ(mesh_->Generate(other).ids, Undisturbed(other));
  LetGo();
  ExpectOneMiss(0, "evicted_lru");
}

TEST_F(CacheMiss, ASessionPushedOutByBytesIsHealedByOnePrefill) {
  // Room for one session of two blocks of 16 tokens, three layers of 64 bytes a token.
  constexpr uint64_t kBytes = 2 * 16 * 3 * 64;
  MakeMesh({{.layers = {0, 3}, .bytes_max = kBytes}, {.layers = {3, 6}, .bytes_max = kBytes}});
  CutAndHold(/*keep=*/false);
  const Request other{.prompt = "another"};
  EXPECT_EQ(mesh_->Generate(other).ids, Undisturbed(other));
  LetGo();
  ExpectOneMiss(0, "evicted_bytes");
}

TEST_F(CacheMiss, AShardThatLostItsMemoryIsHealedByOnePrefill) {
  MakeMesh(TwoShards());
  CutAndHold(/*keep=*/false);
  mesh_->shard(1).Kill();
  mesh_->shard(1).Start(/*fresh_instance=*/false);
  ASSERT_TRUE(Eventually([this] { return mesh_->router().discovery().Facts().size() == 2; }));
  LetGo();
  ExpectOneMiss(1, "unknown_session");
}

TEST_F(CacheMiss, ARestartedShardIsKnownByItsInstanceAndCostsOnePrefillWithoutAMiss) {
  MakeMesh(TwoShards());
  CutAndHold(/*keep=*/false);
  mesh_->shard(1).Kill();
  mesh_->shard(1).Start(/*fresh_instance=*/true);
  ASSERT_TRUE(Eventually([this] {
    const auto facts = mesh_->router().discovery().Facts();
    return facts.size() == 2 && (facts[0].instance == mesh_->shard(1).setup().instance ||
                                 facts[1].instance == mesh_->shard(1).setup().instance);
  }));
  LetGo();
  ExpectSameIds();
  EXPECT_EQ(mesh_->RouterCounter("reprefills_total"), 1);
  EXPECT_EQ(mesh_->RouterMisses("unknown_session"), 0);
  EXPECT_TRUE(mesh_->NothingHeld());
}

TEST_F(CacheMiss, AShardThatStoppedCachingCostsOneMissAndIsUsedWithoutACacheFromThenOn) {
  MakeMesh(TwoShards());
  CutAndHold(/*keep=*/false);
  mesh_->shard(1).Kill();
  mesh_->shard(1).setup().caching = false;
  mesh_->shard(1).Start(/*fresh_instance=*/false);
  ASSERT_TRUE(Eventually([this] { return mesh_->router().discovery().Facts().size() == 2; }));
  LetGo();
  ExpectSameIds();
  EXPECT_EQ(mesh_->RouterMisses("caching_disabled"), 1);
  EXPECT_EQ(mesh_->shard(1).Misses("caching_disabled"), 1);
  EXPECT_EQ(mesh_->RouterCounter("reprefills_total"), 1);
  // What the first shard held before is nobody's any more.
  mesh_->shard_clock().Advance(absl::Seconds(31));
  EXPECT_TRUE(mesh_->NothingHeld());
}

}  // namespace
}  // namespace kvmesh::testing

// Streams that break, arbiters that do not behave, and whom a store obeys.
#include "tests/rpc/blob/attach_fixture.h"

namespace kvmesh::blob {
namespace {

using testing::MakeRandomSlab;
using testing::RandomSlab;

const std::string kFirst(16, 'a');
const std::string kSecond(16, 'b');

class AttachStreamTest : public AttachTest {
 protected:
  v1::StoreHello Hello() {
    const auto frame = arbiter_->WaitFor([](const Frame& said) { return said.has_hello(); });
    EXPECT_TRUE(frame);
    return frame ? frame->hello() : v1::StoreHello();
  }
  bool WaitForAttached(bool attached) {
    return WaitUntil(
        [&] { return blob_->metrics().Value("kvmesh_blob_attached") == (attached ? 1 : 0); });
  }
};

TEST_P(AttachStreamTest, AStreamThatEndsIsFollowedByAnotherThatSaysAllAgain) {
  StartAttached();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(Put(slab).ok());
  ASSERT_TRUE(WaitForAnnounced(slab));
  EXPECT_TRUE(WaitForAttached(true));
  const v1::StoreHello first = Hello();
  for (int lost = 1; lost <= 3; ++lost) {
    arbiter_->End(lost == 2 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "drains")
                            : grpc::Status::OK);
    ASSERT_TRUE(arbiter_->WaitForStreams(lost + 1));
    ASSERT_TRUE(arbiter_->WaitForInventory());
    ASSERT_EQ(arbiter_->Inventory().size(), 1U);
    EXPECT_EQ(arbiter_->Inventory()[0].slab().slab().key(), slab.meta.key.ToHex());
    EXPECT_EQ(Hello().store_id(), first.store_id());
    EXPECT_EQ(Hello().boot_id(), first.boot_id());
    EXPECT_EQ(Hello().incarnation_seen().number(), 1U);
  }
}

TEST_P(AttachStreamTest, WithoutAnArbiterItServesAndAttachesWhenOneComes) {
  const int port = arbiter_->port();
  arbiter_.reset();
  Start();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(Put(slab).ok());
  EXPECT_EQ(blob_->metrics().Value("kvmesh_blob_attached"), 0);
  arbiter_ = std::make_unique<testing::FakeArbiter>(port);
  ASSERT_TRUE(arbiter_->WaitForInventory());
  EXPECT_EQ(arbiter_->Inventory().size(), 1U);
}

TEST_P(AttachStreamTest, AnArbiterThatDiesAndComesBackIsToldAll) {
  StartAttached();
  ASSERT_TRUE(Put(MakeRandomSlab({})).ok());
  const int port = arbiter_->port();
  arbiter_.reset();
  EXPECT_TRUE(WaitForAttached(false));
  arbiter_ = std::make_unique<testing::FakeArbiter>(port);
  arbiter_->WelcomeAs(std::pair(2, kSecond));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  EXPECT_EQ(arbiter_->Inventory().size(), 1U);
}

TEST_P(AttachStreamTest, TheIdIsTheDataFoldersForGoodAndTheBootIdOneProcesss) {
  StartAttached();
  const v1::StoreHello first = Hello();
  blob_.reset();
  ASSERT_TRUE(arbiter_->WaitForEnd());
  Start();
  ASSERT_TRUE(arbiter_->WaitForStreams(2));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  EXPECT_EQ(Hello().store_id() == first.store_id(), has_files());
  EXPECT_NE(Hello().boot_id(), first.boot_id());
}

TEST_P(AttachStreamTest, ALowerIncarnationOrTheSameUnderAnotherIdIsNotObeyed) {
  arbiter_->WelcomeAs(std::pair(5, kFirst));
  StartAttached();
  const RandomSlab slab = MakeRandomSlab({});
  ASSERT_TRUE(Put(slab).ok());
  ASSERT_TRUE(WaitForAnnounced(slab));
  for (const auto& stale : {std::pair(4, kFirst), std::pair(5, kSecond), std::pair(0, kSecond)}) {
    arbiter_->WelcomeAs(std::nullopt);
    const int streams = arbiter_->streams();
    arbiter_->End(grpc::Status::OK);
    ASSERT_TRUE(arbiter_->WaitForStreams(streams + 1));
    EXPECT_EQ(Hello().incarnation_seen().number(), 5U);
    EXPECT_EQ(Hello().incarnation_seen().id(), kFirst);
    arbiter_->Welcome(stale.first, stale.second);
    arbiter_->Send(DeleteOf(slab));
    // It hangs up, says nothing of what it has, and keeps the slab.
    ASSERT_TRUE(arbiter_->WaitForStreams(streams + 2));
    EXPECT_TRUE(blob_->store().Stat(NameOf(slab.meta)).ok());
    EXPECT_TRUE(arbiter_->Inventory().empty());
  }
  arbiter_->WelcomeAs(std::pair(6, kSecond));
  const int streams = arbiter_->streams();
  arbiter_->End(grpc::Status::OK);
  ASSERT_TRUE(arbiter_->WaitForStreams(streams + 1));
  ASSERT_TRUE(arbiter_->WaitForInventory());
  arbiter_->Send(DeleteOf(slab));
  EXPECT_TRUE(WaitForRemoved(slab, v1::REMOVAL_CAUSE_DELETED));
}

TEST_P(AttachStreamTest, WhomItObeyedOutlivesTheProcessBesideTheSlabs) {
  if (!has_files()) return;
  arbiter_->WelcomeAs(std::pair(9, kFirst));
  StartAttached();
  blob_.reset();
  Start();
  ASSERT_TRUE(arbiter_->WaitForStreams(2));
  EXPECT_EQ(Hello().incarnation_seen().number(), 9U);
  EXPECT_EQ(Hello().incarnation_seen().id(), kFirst);
}

TEST_P(AttachStreamTest, AnIncarnationThatGrowsWithinAStreamIsObeyed) {
  StartAttached();
  arbiter_->Welcome(8, kFirst);
  Command ping;
  ping.mutable_ping();
  arbiter_->Send(ping);
  ASSERT_TRUE(arbiter_->WaitFor([](const Frame& frame) { return frame.has_pong(); }));
  arbiter_->End(grpc::Status::OK);
  ASSERT_TRUE(arbiter_->WaitForStreams(2));
  EXPECT_EQ(Hello().incarnation_seen().number(), 8U);
}

TEST_P(AttachStreamTest, ACommandThatIsNoneOrComesBeforeTheWelcomeEndsTheStream) {
  StartAttached();
  int streams = 1;
  std::vector<Command> bad(4);
  bad[1].mutable_delete_slab()->mutable_slab()->set_key("../../etc/passwd");
  bad[2].mutable_welcome();
  for (int i = 0; i <= kUsesMax; ++i) {
    *bad[3].mutable_record_use()->add_uses()->mutable_slab() = IdOf(MakeRandomSlab({}));
  }
  for (const Command& command : bad) {
    arbiter_->Send(command);
    ASSERT_TRUE(arbiter_->WaitForStreams(++streams));
    ASSERT_TRUE(arbiter_->WaitForInventory());
  }
  arbiter_->WelcomeAs(std::nullopt);
  arbiter_->End(grpc::Status::OK);
  ASSERT_TRUE(arbiter_->WaitForStreams(++streams));
  Hello();
  arbiter_->Send(DeleteOf(MakeRandomSlab({})));
  EXPECT_TRUE(arbiter_->WaitForStreams(++streams));
}

TEST_P(AttachStreamTest, AnArbiterThatDoesNotAnswerTheHelloIsTriedAgain) {
  options_.meta.silence_max = absl::Milliseconds(100);
  arbiter_->WelcomeAs(std::nullopt);
  Start();
  EXPECT_TRUE(arbiter_->WaitForStreams(3));
}

TEST_P(AttachStreamTest, NewsThatTheArbiterDoesNotTakeIsBoundedAndTheNextInventorySaysIt) {
  options_.meta.news_max = 8;
  StartAttached();
  arbiter_->StopReading();
  Command describe;
  *describe.mutable_describe_slab()->mutable_slab() = IdOf(MakeRandomSlab({}));
  constexpr int kMoreThanTheWindow = 4000;
  for (int i = 0; i < kMoreThanTheWindow; ++i) arbiter_->Send(describe);
  EXPECT_TRUE(arbiter_->WaitForStreams(2));
}

INSTANTIATE_TEST_SUITE_P(Tiers, AttachStreamTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob

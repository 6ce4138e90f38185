// What a shard tells of itself and of its sessions, and whom it may call.
#include <gtest/gtest.h>

#include "tests/rpc/shard/shard_fixture.h"

namespace kvmesh::shard {
namespace {

using ShardInspection = ShardServerTest;

TEST_F(ShardInspection, ListsSessionsInPagesAndDropsThem) {
  const TestShard shard = StartWhole();
  std::vector<std::unique_ptr<ForwardClient>> clients;
  for (uint8_t session = 1; session <= 3; ++session) {
    clients.push_back(std::make_unique<ForwardClient>(*shard.stub));
    clients.back()->Send(MakeOpen({Ref(shard, kAll)}, session, kPrompt));
    ASSERT_TRUE(clients.back()->Read().has_value());
  }
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  std::vector<std::string> ids;
  for (int page = 0; page < 2; ++page) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ListSessionsResponse response;
    ASSERT_TRUE(shard.stub->ListSessions(&context, request, &response).ok());
    for (const auto& session : response.sessions()) ids.push_back(session.session_id());
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(ids,
            (std::vector<std::string>{Session(1).ToHex(), Session(2).ToHex(), Session(3).ToHex()}));
  EXPECT_TRUE(request.page_token().empty());

  grpc::ClientContext context;
  SetDeadline(context);
  v1::DropSessionRequest drop;
  drop.set_session_id(Session(2).ToHex());
  drop.set_epoch(1);
  v1::DropSessionResponse dropped;
  ASSERT_TRUE(shard.stub->DropSession(&context, drop, &dropped).ok());
  EXPECT_TRUE(dropped.dropped());
  EXPECT_EQ(ReasonOf(clients[1]->End()), reason::kSuperseded);
  EXPECT_FALSE(GetSession(shard, 2).has_value());
}

TEST_F(ShardInspection, InspectionRefusesWhatItCannotRead) {
  const TestShard shard = StartWhole();
  v1::GetSessionRequest request;
  request.set_session_id("xyz");
  v1::GetSessionResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_EQ(shard.stub->GetSession(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  v1::ListSessionsRequest list;
  list.set_page_size(limits::kListPageMax + 1);
  v1::ListSessionsResponse listed;
  grpc::ClientContext list_context;
  SetDeadline(list_context);
  EXPECT_EQ(shard.stub->ListSessions(&list_context, list, &listed).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ShardInspection, WatchTellsFactsAtOnceChangesAndHeartbeats) {
  const TestShard shard = StartWhole({.sessions_max = 5});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::WatchRequest request;
  request.mutable_heartbeat()->set_value(100);
  auto watch = shard.stub->Watch(&context, request);
  v1::WatchResponse facts;
  ASSERT_TRUE(watch->Read(&facts));
  EXPECT_EQ(facts.instance_id(), std::string(shard.server->instance().bytes()));
  EXPECT_EQ(facts.layers().end(), kLayers);
  EXPECT_EQ(facts.layer_digests_size(), static_cast<int>(kLayers));
  EXPECT_EQ(facts.quant(), testing::kToyQuant);
  EXPECT_TRUE(facts.supports_kv_cache());
  EXPECT_EQ(facts.capacity().sessions_max(), 5u);
  EXPECT_EQ(facts.live_sessions(), 0u);
  ForwardClient client(*shard.stub);
  client.Send(MakeOpen({Ref(shard, kAll)}, 1, kPrompt));
  while (facts.live_sessions() == 0) ASSERT_TRUE(watch->Read(&facts));
  ASSERT_TRUE(watch->Read(&facts));  // a heartbeat: nothing has changed
  shard.server->Drain();
  while (!facts.draining()) ASSERT_TRUE(watch->Read(&facts));
}

TEST_F(ShardInspection, WatchRefusesAHeartbeatOutOfRange) {
  const TestShard shard = StartWhole();
  for (const uint64_t millis : {99, 60001}) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchRequest request;
    request.mutable_heartbeat()->set_value(millis);
    auto watch = shard.stub->Watch(&context, request);
    v1::WatchResponse facts;
    EXPECT_FALSE(watch->Read(&facts));
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(ShardInspection, DescribeTellsSizes) {
  const TestShard shard = StartWhole({.threads = 3});
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeResponse description;
  ASSERT_TRUE(shard.stub->Describe(&context, {}, &description).ok());
  EXPECT_EQ(description.threads(), 3u);
  EXPECT_EQ(description.shard().capacity().bytes_per_token(), 64u * kLayers);
  ASSERT_EQ(description.state_bytes_size(), 1);
  EXPECT_EQ(description.state_bytes(0).kind(), "key_value");
}

TEST(PeerBook, AllowsOnlyItsNames) {
  const PeerBook book({"10.0.0.1:7000", "10.0.0.2", "[::1]:7000", "shards.invalid:7000"});
  EXPECT_TRUE(book.Allows("10.0.0.1:7000"));
  EXPECT_FALSE(book.Allows("10.0.0.1:7001"));
  EXPECT_TRUE(book.Allows("10.0.0.2:1"));
  EXPECT_TRUE(book.Allows("[::1]:7000"));
  EXPECT_TRUE(book.Allows("shards.invalid:7000"));
  EXPECT_FALSE(book.Allows("10.0.0.3:7000"));
  EXPECT_FALSE(book.Allows(""));
  EXPECT_FALSE(PeerBook({}).Allows("10.0.0.1:7000"));
  EXPECT_TRUE(PeerBook({"*"}).Allows("anything:1"));
}

TEST(PeerBook, AStarStandsForOneLabelOfAName) {
  const PeerBook book({"*.stores.mesh.svc:7000"});
  EXPECT_TRUE(book.Allows("stores-0.stores.mesh.svc:7000"));
  EXPECT_TRUE(book.Allows("stores-17.stores.mesh.svc:7000"));
  EXPECT_FALSE(book.Allows("stores-0.stores.mesh.svc:7001"));
  EXPECT_FALSE(book.Allows("stores.mesh.svc:7000"));
  EXPECT_FALSE(book.Allows(".stores.mesh.svc:7000"));
  EXPECT_FALSE(book.Allows("a.b.stores.mesh.svc:7000"));
  EXPECT_FALSE(book.Allows("stores-0.stores.mesh.svc.evil:7000"));
  EXPECT_FALSE(book.Allows("stores-0xstores.mesh.svc:7000"));
}

TEST(PeerBook, ResolvesNamesInTheBackground) {
  const PeerBook book({"localhost:7000"});
  EXPECT_TRUE(Eventually([&] { return book.Allows("127.0.0.1:7000"); }));
  EXPECT_FALSE(book.Allows("127.0.0.1:7001"));
}

}  // namespace
}  // namespace kvmesh::shard

// A whole arbiter on a free port, and calls to it.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/meta/grpc/meta_codec.h"
#include "services/meta/grpc/meta_server.h"
#include "tests/testing/fake_store.h"
#include "tests/testing/index_rows.h"

namespace kvmesh::meta {

using testing::AnnouncementOf;
using testing::FakeSlab;
using testing::FakeStore;
using testing::FakeStoreOptions;
using testing::kIndexNamespace;
using testing::RowText;
using testing::WaitUntil;

class MetaRpcTest : public ::testing::Test {
 protected:
  void Start(MetaServerOptions options = {}) {
    options.server.listen = "127.0.0.1:0";
    options.loop.arbiter.incarnation_id = RandomId<InstanceId>();
    // A FakeStore says nothing unasked, and a test may take long.
    options.loop.arbiter.limits.store_silence_max = absl::InfiniteDuration();
    auto meta = MetaServer::Start(options, clock_);
    ASSERT_TRUE(meta.ok()) << meta.status();
    meta_ = *std::move(meta);
    channel_ = rpc::MakeChannel(absl::StrCat("127.0.0.1:", meta_->port()));
    ASSERT_TRUE(channel_->WaitForConnected(testing::MinuteFromNow()));
    stub_ = v1::MetaService::NewStub(channel_);
  }

  // One call by the stub's method.
  template <typename Request, typename Response>
  absl::Status Do(grpc::Status (v1::MetaService::Stub::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                  const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(testing::MinuteFromNow());
    return rpc::FromGrpc(((*stub_).*method)(&context, request, response));
  }

  static v1::CacheNamespace Namespace(const slab::KeyNamespace& of = kIndexNamespace) {
    return EncodeNamespace(of);
  }
  v1::LookupResponse Lookup(const std::string& text, bool checkout = false,
                            const slab::KeyNamespace& in = kIndexNamespace) {
    v1::LookupRequest request;
    *request.mutable_namespace_() = Namespace(in);
    request.set_text(text);
    request.set_checkout(checkout);
    if (checkout) request.set_lease_id(std::string(RandomId<LeaseId>().bytes()));
    v1::LookupResponse response;
    const absl::Status status = Do(&v1::MetaService::Stub::Lookup, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
  // Bytes of the longest hit; 0: none.
  uint64_t HitBytes(const std::string& text) { return Lookup(text).text_bytes(); }
  bool WaitForHit(const std::string& text, uint64_t bytes) {
    return WaitUntil([&] { return HitBytes(text) == bytes; });
  }

  static v1::ReserveRequest ReserveOf(const std::string& text) {
    v1::ReserveRequest request;
    request.set_request_id(std::string(RandomId<RequestId>().bytes()));
    request.set_kind(v1::RESERVATION_KIND_ROW);
    *request.mutable_namespace_() = Namespace();
    request.set_key(slab::ContentKey(kIndexNamespace, text).ToHex());
    request.set_model_layers(30);
    for (const auto& [begin, end] : {std::pair(0, 15), std::pair(15, 30)}) {
      v1::RangeBytes& range = *request.add_ranges();
      range.mutable_layers()->set_begin(begin);
      range.mutable_layers()->set_end(end);
      range.set_size_bytes(1 << 20);
    }
    request.set_reason(v1::SAVE_REASON_CONTINUED);  // to ram
    return request;
  }
  // The two slabs of a row of this text.
  static std::vector<FakeSlab> Halves(const std::string& text, const WriteId& write_id,
                                      std::vector<uint32_t> cuts = {}) {
    FakeSlab lower{.key_namespace = kIndexNamespace,
                   .text = text,
                   .cuts = std::move(cuts),
                   .layers = {0, 15},
                   .write_id = write_id};
    FakeSlab upper = lower;
    upper.layers = {15, 30};
    return {lower, upper};
  }
  static void PutRow(FakeStore& store, const std::string& text, std::vector<uint32_t> cuts = {}) {
    for (const FakeSlab& slab : Halves(text, RandomId<WriteId>(), std::move(cuts))) store.Put(slab);
  }
  // Attaches the store with a row of this text in it, and waits until lookups find that.
  void ServeRow(FakeStore& store, const std::string& text, std::vector<uint32_t> cuts = {}) {
    PutRow(store, text, std::move(cuts));
    ASSERT_TRUE(store.Attach(channel_).ok());
    ASSERT_TRUE(WaitForHit(text, text.size()));
  }

  MonotonicClock clock_;
  std::unique_ptr<MetaServer> meta_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::MetaService::Stub> stub_;
};

}  // namespace kvmesh::meta

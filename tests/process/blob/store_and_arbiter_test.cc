// A real store attached to a real arbiter: a slab is found once it is put, and each of the two may
// be killed.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/blob/core/slab_name.h"
#include "tests/process/process_testing.h"
#include "tests/testing/random_slab.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

using testing::RandomSlab;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kTokens = 601;  // the text ends between two characters
constexpr absl::Duration kTimeout = absl::Seconds(60);

class StoreAndArbiter : public ::testing::Test {
 protected:
  void SetUp() override {
    StartArbiter("127.0.0.1:0");
    StartStore();
    ASSERT_TRUE(WaitUntil([&] { return StoreState() == "SERVING"; }));
  }

  void StartArbiter(const std::string& listen) {
    arbiter_ = Start("meta", {Program("kvmesh-meta"), "--listen", listen}, &arbiter_address_);
    meta_ = v1::MetaService::NewStub(rpc::MakeChannel(arbiter_address_));
  }
  void StartStore() {
    store_ = Start("blob",
                   {Program("kvmesh-blob"), "--tier", "disk", "--dir", folder_.path() + "/data",
                    "--budget-bytes", "100000000", "--meta", arbiter_address_},
                   &store_address_);
  }
  std::unique_ptr<Process> Start(const std::string& name, std::vector<std::string> command,
                                 std::string* address) {
    const std::string ready = absl::StrCat(folder_.path(), "/", name, ".ready");
    std::filesystem::remove(ready);
    command.insert(command.end(), {"--ready-file", ready});
    // Each keeps its output in a folder of its own.
    outputs_.push_back(std::make_unique<TempDir>());
    auto process = std::make_unique<Process>(command, *outputs_.back());
    EXPECT_TRUE(WaitUntil([&] { return std::filesystem::exists(ready); })) << process->Err();
    *address = cli::Json::parse(testing::ReadWholeFile(ready))["address"].get<std::string>();
    return process;
  }

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::MetaService::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    const Request& request, Response* response) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return rpc::FromGrpc((meta_.get()->*method)(&context, request, response));
  }
  std::string StoreState() const {
    v1::MetaServiceGetStatsResponse stats;
    const absl::Status status =
        Call(&v1::MetaService::Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats);
    return status.ok() && stats.stores_size() > 0 ? stats.stores(0).state() : "";
  }
  v1::LookupResponse Lookup(const RandomSlab& slab) const {
    v1::LookupRequest request;
    *request.mutable_namespace_() = NamespaceOf(slab);
    request.set_text(slab.meta.text);
    v1::LookupResponse response;
    Call(&v1::MetaService::Stub::Lookup, request, &response).IgnoreError();
    return response;
  }
  bool WaitUntilFound(const RandomSlab& slab, bool found) const {
    return WaitUntil([&] { return Lookup(slab).found() == found; });
  }
  static v1::CacheNamespace NamespaceOf(const RandomSlab& slab) {
    v1::CacheNamespace proto;
    proto.set_model_fp(slab.meta.key_namespace.model_fp);
    proto.set_quant(slab.meta.key_namespace.quant);
    proto.set_ctx_params_hash(slab.meta.key_namespace.ctx_params);
    return proto;
  }

  static v1::ReserveRequest ReserveOf(const RandomSlab& slab) {
    v1::ReserveRequest request;
    request.set_request_id(std::string(16, 'r'));
    request.set_kind(v1::RESERVATION_KIND_ROW);
    *request.mutable_namespace_() = NamespaceOf(slab);
    request.set_key(slab.meta.key.ToHex());
    request.set_model_layers(kLayers);
    v1::RangeBytes& range = *request.add_ranges();
    range.mutable_layers()->set_end(kLayers);
    range.set_size_bytes(slab.bytes.size());
    request.set_reason(v1::SAVE_REASON_FINISH);
    return request;
  }
  // Reserves a write of all layers and puts it; the slab under the write_id that it got.
  RandomSlab Save() const {
    RandomSlab slab = testing::MakeRandomSlab({.layers = {0, kLayers}, .token_count = kTokens});
    v1::ReserveResponse reserved;
    const absl::Status status = Call(&v1::MetaService::Stub::Reserve, ReserveOf(slab), &reserved);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return slab;
    EXPECT_EQ(reserved.ranges(0).address(), store_address_);
    slab = testing::WithWriteId(slab, *WriteId::FromBytes(reserved.write_id(), "write_id"));
    v1::PutHeader header;
    *header.mutable_slab() = IdOf(slab);
    header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
    header.set_size_bytes(slab.bytes.size());
    header.set_payload_crc32c(slab.meta.payload_crc32c());
    const auto put = rpc::PutSlab(rpc::MakeChannel(store_address_), header,
                                  rpc::SlabBytes::Of(slab.bytes), kTimeout);
    EXPECT_TRUE(put.ok()) << put.status();
    return slab;
  }
  static v1::SlabId IdOf(const RandomSlab& slab) {
    v1::SlabId id;
    id.set_key(slab.meta.key.ToHex());
    id.mutable_layers()->set_end(kLayers);
    id.set_write_id(slab.meta.write_id.ToHex());
    return id;
  }
  absl::Status Get(const RandomSlab& slab, std::string* bytes) const {
    v1::GetRequest request;
    *request.mutable_slab() = IdOf(slab);
    request.set_part(v1::GET_PART_WHOLE);
    return rpc::GetSlab(rpc::MakeChannel(store_address_), request, kTimeout,
                        [&](const v1::GetHeader&, absl::string_view part) {
                          bytes->append(part.data(), part.size());
                          return absl::OkStatus();
                        })
        .status();
  }

  const TempDir folder_;
  std::vector<std::unique_ptr<TempDir>> outputs_;
  std::string arbiter_address_;
  std::string store_address_;
  std::unique_ptr<Process> arbiter_;
  std::unique_ptr<Process> store_;
  std::unique_ptr<v1::MetaService::Stub> meta_;
};

// All but the marks of use in the header, which hits rewrite.
void ExpectSameState(const std::string& bytes, const RandomSlab& slab) {
  ASSERT_EQ(bytes.size(), slab.bytes.size());
  EXPECT_TRUE(bytes.substr(slab::kHeaderBytes) == slab.bytes.substr(slab::kHeaderBytes));
}

TEST_F(StoreAndArbiter, ASlabIsFoundOnceItIsPutAndGoneOnceItIsEvicted) {
  const RandomSlab slab = Save();
  ASSERT_TRUE(WaitUntilFound(slab, true));
  const v1::LookupResponse found = Lookup(slab);
  EXPECT_EQ(found.token_count(), kTokens);
  ASSERT_EQ(found.row().slabs_size(), 1);
  EXPECT_EQ(found.row().slabs(0).address(), store_address_);
  EXPECT_EQ(found.row().slabs(0).tier(), "disk");
  std::string bytes;
  ASSERT_TRUE(Get(slab, &bytes).ok());
  ExpectSameState(bytes, slab);

  v1::EvictRowsRequest evict;
  evict.add_keys(slab.meta.key.ToHex());
  v1::EvictRowsResponse evicted;
  ASSERT_TRUE(Call(&v1::MetaService::Stub::EvictRows, evict, &evicted).ok());
  EXPECT_EQ(evicted.row_count(), 1U);
  EXPECT_TRUE(WaitUntilFound(slab, false));
  EXPECT_TRUE(WaitUntil([&] { return absl::IsNotFound(Get(slab, &bytes)); }));
  EXPECT_TRUE(WaitUntil([&] {
    v1::MetaServiceGetStatsResponse stats;
    return Call(&v1::MetaService::Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).ok() &&
           stats.stores(0).live_bytes() == 0 && stats.stores(0).deleting_bytes() == 0;
  }));
}

// A slab does not say how many layers its model has; the next save does.
TEST_F(StoreAndArbiter, AnArbiterThatWasKilledFindsAllAgainWithTheNextSaveUnderAHigherIncarnation) {
  const RandomSlab slab = Save();
  ASSERT_TRUE(WaitUntilFound(slab, true));
  const auto incarnation = [&] {
    v1::MetaServiceGetStatsResponse stats;
    Call(&v1::MetaService::Stub::GetStats, v1::MetaServiceGetStatsRequest(), &stats).IgnoreError();
    return stats.incarnation().number();
  };
  uint64_t before = incarnation();
  for (int round = 0; round < 3; ++round) {
    arbiter_->Signal(SIGKILL);
    arbiter_->Wait();
    StartArbiter(arbiter_address_);
    ASSERT_TRUE(WaitUntil([&] { return StoreState() == "SERVING"; })) << store_->Err();
    v1::ReserveRequest another = ReserveOf(slab);
    another.set_key(std::string(64, 'a'));
    v1::ReserveResponse reserved;
    ASSERT_TRUE(Call(&v1::MetaService::Stub::Reserve, another, &reserved).ok());
    ASSERT_TRUE(WaitUntilFound(slab, true)) << store_->Err();
    EXPECT_GT(incarnation(), before);
    before = incarnation();
  }
}

TEST_F(StoreAndArbiter, AStoreThatWasKilledIsOfferedAgainWhenItIsBack) {
  const RandomSlab slab = Save();
  ASSERT_TRUE(WaitUntilFound(slab, true));
  store_->Signal(SIGKILL);
  store_->Wait();
  EXPECT_TRUE(WaitUntilFound(slab, false));
  StartStore();
  EXPECT_TRUE(WaitUntilFound(slab, true)) << store_->Err();
  EXPECT_EQ(Lookup(slab).row().slabs(0).address(), store_address_);
  std::string bytes;
  ASSERT_TRUE(Get(slab, &bytes).ok());
  ExpectSameState(bytes, slab);
}

}  // namespace
}  // namespace kvmesh::process_testing

// The blob service over the wire, on every tier.
#include <algorithm>
#include <fstream>

#include "common/base/error_info.h"
#include "tests/rpc/blob/blob_fixture.h"
#include "tests/testing/bad_text.h"

namespace kvmesh::blob {
namespace {

using testing::MakeRandomSlab;
using testing::MakeSlabOfSize;
using testing::RandomSlab;

TEST_P(BlobServiceTest, WhatWasPutComesBackWholeInPartsAndAsMeta) {
  Start();
  const RandomSlab slab = MakeRandomSlab({.layers = {3, 6}, .token_count = 900, .row_values = 700});
  ASSERT_GT(slab.bytes.size(), 8U << 20);
  const auto put = Put(slab);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->slab().token_count(), 900U);
  EXPECT_EQ(put->slab().cut_points_size(), static_cast<int>(slab.meta.cut_points.size()));
  const auto whole = Get(Whole(slab));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE(*whole == slab.bytes);

  v1::GetRequest request = Whole(slab);
  request.set_part(v1::GET_PART_META);
  const auto meta = Get(request);
  ASSERT_TRUE(meta.ok()) << meta.status();
  EXPECT_EQ(meta->size(), slab::kHeadBytes + slab.meta.meta_bytes + slab::kTrailerBytes);
  EXPECT_EQ(meta->substr(0, 100), slab.bytes.substr(0, 100));

  request.set_part(v1::GET_PART_LAYERS);
  v1::LayerSelection& layer = *request.add_layers();
  layer.set_layer(4);
  const auto part = Get(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_NE(part->find(slab.layers[1].substr(0, 4096)), std::string::npos);
  EXPECT_LT(part->size(), slab.bytes.size() / 2);
  layer.set_tokens(100);
  const auto cut = Get(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_LT(cut->size(), part->size());
}

TEST_P(BlobServiceTest, ARepeatedPutIsAdoptedWithoutReadingItAgain) {
  Start();
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  ASSERT_TRUE(Put(slab).ok());
  const auto again = Put(slab);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->adopted());
}

TEST_P(BlobServiceTest, MalformedNamesAndFramesAreInvalidArguments) {
  Start();
  const RandomSlab slab = MakeRandomSlab({});
  const auto code = [&](const std::function<void(v1::PutHeader&)>& change) {
    v1::PutHeader header = Header(slab);
    change(header);
    return rpc::PutSlab(channel_, header, rpc::SlabBytes::Of(slab.bytes), kTimeout).status().code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->set_key("../../../etc/passwd"); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->set_key(std::string(63, 'a')); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->set_key(std::string(64, 'g')); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->set_write_id("../x"); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->clear_layers(); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.mutable_slab()->mutable_layers()->set_end(5000); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.set_tokens_sha256("short"); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.set_size_bytes(0); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.set_size_bytes(UINT64_MAX); }), invalid);
  EXPECT_EQ(code([](auto& h) { h.clear_slab(); }), invalid);
  v1::SlabId bad;
  bad.set_key("x");
  EXPECT_EQ(Delete(bad).code(), invalid);
  v1::GetRequest get;
  *get.mutable_slab() = bad;
  EXPECT_EQ(Get(get).status().code(), invalid);
  get = Whole(slab);
  get.set_part(v1::GET_PART_UNSPECIFIED);
  EXPECT_EQ(Get(get).status().code(), invalid);
  EXPECT_EQ(Get(Whole(slab)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(folder_.Files().empty());
  EXPECT_TRUE(Put(slab).ok());
}

TEST_P(BlobServiceTest, ChunksWithoutHeaderTooLargeOrEmptyAreRefused) {
  Start();
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  const auto send = [&](const std::vector<v1::PutRequest>& requests) {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::PutResponse response;
    const auto writer = stub_->Put(&context, &response);
    for (const v1::PutRequest& request : requests) {
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return rpc::FromGrpc(writer->Finish()).code();
  };
  v1::PutRequest header;
  *header.mutable_header() = Header(slab);
  v1::PutRequest chunk;
  chunk.set_chunk(slab.bytes.substr(0, kChunkBytesMax + 1));
  v1::PutRequest empty;
  empty.set_chunk("");
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(send({}), invalid);
  EXPECT_EQ(send({chunk}), invalid);
  EXPECT_EQ(send({header, chunk}), invalid);
  EXPECT_EQ(send({header, empty}), invalid);
  EXPECT_EQ(send({header, header}), invalid);
  EXPECT_EQ(send({header, v1::PutRequest()}), invalid);
  EXPECT_EQ(send({header}), invalid);
  EXPECT_EQ(blob_->store().usage().occupied(), 0U);
}

TEST_P(BlobServiceTest, APutBeyondTheBudgetIsRefusedBeforeAByteIsTaken) {
  BlobServerOptions options;
  options.store.budget_bytes = 1 << 20;
  Start(options);
  const RandomSlab slab = MakeSlabOfSize(1, 4 << 20);
  const auto put = Put(slab);
  EXPECT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(put.status()), reason::kTooLarge);
  EXPECT_EQ(blob_->metrics().Value("kvmesh_blob_put_bytes_total"), 0);
}

TEST_P(BlobServiceTest, RequestsThatAreNotUtf8NameTheirField) {
  Start();
  testing::ExpectBadTextIsRefused(channel_, "kvmesh.v1.BlobService");
}

TEST_P(BlobServiceTest, ListGoesPageByPageAndStatFindsOne) {
  Start();
  for (uint64_t seed = 1; seed <= 7; ++seed) ASSERT_TRUE(Put(MakeRandomSlab({.seed = seed})).ok());
  v1::ListRequest request;
  request.set_page_size(3);
  std::vector<std::string> keys;
  for (int page = 0; page < 4; ++page) {
    grpc::ClientContext context;
    v1::ListResponse response;
    ASSERT_TRUE(stub_->List(&context, request, &response).ok());
    for (const v1::SlabInfo& info : response.slabs()) keys.push_back(info.slab().key());
    request.set_page_token(response.next_page_token());
    if (request.page_token().empty()) break;
  }
  EXPECT_EQ(keys.size(), 7U);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  const auto list_code = [&](uint32_t size, const std::string& token) {
    grpc::ClientContext context;
    v1::ListRequest bad;
    bad.set_page_size(size);
    bad.set_page_token(token);
    v1::ListResponse response;
    return stub_->List(&context, bad, &response).error_code();
  };
  EXPECT_EQ(list_code(1000, ""), grpc::StatusCode::OK);
  EXPECT_EQ(list_code(1001, ""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(list_code(1, "../"), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::StatRequest stat;
  *stat.mutable_slab() = EncodeName(NameOf(MakeRandomSlab({.seed = 3}).meta));
  v1::StatResponse found;
  EXPECT_TRUE(stub_->Stat(&context, stat, &found).ok());
  EXPECT_EQ(found.slab().token_count(), 70U);
}

TEST_P(BlobServiceTest, APageOfAListEndsBeforeFourMebibytes) {
  Start();
  for (uint64_t seed = 1; seed <= 7; ++seed) {
    ASSERT_TRUE(Put(MakeRandomSlab({.seed = seed,
                                    .layers = {0, 1},
                                    .token_count = 6000,
                                    .row_values = 1,
                                    .align_tokens = 1}))
                    .ok());
  }
  v1::ListRequest request;
  request.set_page_size(1000);
  std::vector<int> sizes;
  do {
    grpc::ClientContext context;
    v1::ListResponse response;
    ASSERT_TRUE(stub_->List(&context, request, &response).ok());
    EXPECT_LE(response.ByteSizeLong(), 4U << 20);
    sizes.push_back(response.slabs_size());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() && sizes.size() < 7);
  EXPECT_EQ(sizes, (std::vector<int>{5, 2}));
}

TEST_P(BlobServiceTest, VerifyAnswersOnceASlab) {
  Start();
  for (uint64_t seed = 1; seed <= 4; ++seed) ASSERT_TRUE(Put(MakeRandomSlab({.seed = seed})).ok());
  size_t expected_bad = 0;
  if (GetParam() != "ram") {
    const std::string path = folder_.path() + "/" + folder_.Files()[0];
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-40, std::ios::end);
    file.write("X", 1);
    expected_bad = 1;
  }
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  const auto reader = stub_->Verify(&context, {});
  v1::VerifyResponse response;
  size_t sound = 0;
  size_t bad = 0;
  while (reader->Read(&response)) ++(response.sound() ? sound : bad);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(bad, expected_bad);
  EXPECT_EQ(sound, 4 - expected_bad);
  grpc::ClientContext stats_context;
  v1::BlobServiceGetStatsResponse stats;
  ASSERT_TRUE(stub_->GetStats(&stats_context, {}, &stats).ok());
  EXPECT_EQ(stats.tier(), GetParam());
  EXPECT_EQ(stats.slabs(), 4 - expected_bad);
  EXPECT_EQ(stats.slabs_quarantined(), expected_bad);
}

INSTANTIATE_TEST_SUITE_P(Tiers, BlobServiceTest, ::testing::Values("ram", "ram_file", "disk"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvmesh::blob

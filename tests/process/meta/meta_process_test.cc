// The real kvmesh-meta with real stores: killed at any time, drained, and looked at by the command
// line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "common/slab/cut_points.h"
#include "common/slab/writer.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "tests/process/process_testing.h"
#include "tests/testing/index_rows.h"
#include "tools/kvmesh/child.h"

namespace kvmesh {
namespace {

using process_testing::Process;
using process_testing::Program;
using process_testing::RunCli;
using process_testing::TempDir;
using process_testing::WaitUntil;
using testing::kIndexNamespace;
using testing::RowText;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr uint32_t kModelLayers = 4;
constexpr uint32_t kTokens = 600;

std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

// One slab of a text that is the seed's; tokens of two bytes.
struct TestSlab {
  slab::SlabMeta meta;
  std::string bytes;
};

TestSlab MakeSlab(uint64_t seed, LayerRange layers, const WriteId& write_id) {
  slab::SlabMeta meta{.header = {.quant_bits = 16, .context_size = 4096, .layers = layers},
                      .key_namespace = kIndexNamespace,
                      .text = RowText(seed, 2 * kTokens),
                      .write_id = write_id};
  std::vector<uint32_t> ends;
  ends.reserve(kTokens);
  for (uint32_t i = 0; i < kTokens; ++i) {
    meta.token_ids.push_back(i);
    ends.push_back(2 * (i + 1));
  }
  meta.cut_points = slab::ChooseCutPoints(kIndexNamespace, meta.text, ends, 512, 256);
  slab::SlabWriter writer = slab::SlabWriter::Create(std::move(meta)).value();
  const std::string state(2 * kTokens * 16, 's');  // K and V, 16 bytes a row
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    EXPECT_TRUE(writer.AddRegion(slab::StateKind::kKeyValue, slab::DType::kF16, 0, {state}).ok());
  }
  const slab::SlabImage image = writer.Finish().value();
  return {.meta = image.meta(), .bytes = image.ToString()};
}

// The two slabs of a row.
struct Row {
  uint64_t seed;
  TestSlab lower;
  TestSlab upper;
  const std::string& text() const { return lower.meta.text; }
  std::string key() const { return lower.meta.key.ToHex(); }
};

Row MakeRow(uint64_t seed, const WriteId& write_id = {}) {
  return {seed, MakeSlab(seed, {0, 2}, write_id), MakeSlab(seed, {2, kModelLayers}, write_id)};
}

void FillNamespace(const slab::SlabMeta& meta, v1::CacheNamespace* key_namespace) {
  key_namespace->set_model_fp(meta.key_namespace.model_fp);
  key_namespace->set_quant(meta.key_namespace.quant);
  key_namespace->set_ctx_params_hash(meta.key_namespace.ctx_params);
}

class MetaProcessTest : public ::testing::Test {
 protected:
  MetaProcessTest() : ports_(cli::FreePorts(2).value()) {}

  std::string meta_address() const { return absl::StrCat("127.0.0.1:", ports_[0]); }
  std::string blob_address() const { return absl::StrCat("127.0.0.1:", ports_[1]); }

  void StartMeta(std::vector<std::string> flags = {}) {
    std::vector<std::string> command = {Program("kvmesh-meta"), "--listen", meta_address()};
    command.insert(command.end(), flags.begin(), flags.end());
    meta_ = std::make_unique<Process>(command, dir_);
    meta_channel_ = rpc::MakeChannel(meta_address());
    meta_channel_->WaitForConnected(Deadline());
    stub_ = v1::MetaService::NewStub(meta_channel_);
  }
  void StartBlob() {
    blob_ = std::make_unique<Process>(
        std::vector<std::string>{Program("kvmesh-blob"), "--listen", blob_address(), "--tier",
                                 "ram_file", "--dir", dir_.path() + "/blob", "--budget-bytes",
                                 "1000000000", "--meta", meta_address()},
        dir_);
    blob_channel_ = rpc::MakeChannel(blob_address());
    blob_channel_->WaitForConnected(Deadline());
  }

  absl::StatusOr<v1::LookupResponse> Lookup(const Row& row, const std::string& text) {
    v1::LookupRequest request;
    FillNamespace(row.lower.meta, request.mutable_namespace_());
    request.set_text(text);
    v1::LookupResponse response;
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const grpc::Status status = stub_->Lookup(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    return response;
  }
  bool IsFound(const Row& row) {
    const auto response = Lookup(row, row.text());
    return response.ok() && response->found() && response->text_bytes() == row.text().size();
  }

  absl::StatusOr<v1::ReserveResponse> Reserve(const Row& row) {
    v1::ReserveRequest request;
    request.set_request_id(std::string(RandomId<InstanceId>().bytes()));
    request.set_kind(v1::RESERVATION_KIND_ROW);
    FillNamespace(row.lower.meta, request.mutable_namespace_());
    request.set_key(row.key());
    request.set_model_layers(kModelLayers);
    for (const TestSlab* slab : {&row.lower, &row.upper}) {
      v1::RangeBytes& range = *request.add_ranges();
      range.mutable_layers()->set_begin(slab->meta.header.layers.begin);
      range.mutable_layers()->set_end(slab->meta.header.layers.end);
      range.set_size_bytes(slab->bytes.size());
    }
    request.set_reason(v1::SAVE_REASON_COLD);
    v1::ReserveResponse response;
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    const grpc::Status status = stub_->Reserve(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    return response;
  }
  absl::Status Put(const TestSlab& slab) {
    v1::PutHeader header;
    header.mutable_slab()->set_key(slab.meta.key.ToHex());
    header.mutable_slab()->mutable_layers()->set_begin(slab.meta.header.layers.begin);
    header.mutable_slab()->mutable_layers()->set_end(slab.meta.header.layers.end);
    header.mutable_slab()->set_write_id(slab.meta.write_id.ToHex());
    header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
    header.set_size_bytes(slab.bytes.size());
    header.set_payload_crc32c(slab.meta.payload_crc32c());
    return rpc::PutSlab(blob_channel_, header, rpc::SlabBytes::Of(slab.bytes), kTimeout).status();
  }
  // Reserved, and both slabs put.
  absl::Status Publish(const Row& row) {
    const auto reserved = Reserve(row);
    if (!reserved.ok()) return reserved.status();
    const Row named = MakeRow(row.seed, WriteId::FromBytes(reserved->write_id(), "id").value());
    for (const TestSlab* slab : {&named.lower, &named.upper}) {
      if (absl::Status put = Put(*slab); !put.ok()) return put;
    }
    return absl::OkStatus();
  }
  bool PublishSoon(const Row& row) {
    return WaitUntil([&] { return Publish(row).ok(); });
  }

  TempDir dir_;
  const std::vector<int> ports_;
  std::unique_ptr<Process> meta_;
  std::unique_ptr<Process> blob_;
  std::shared_ptr<grpc::Channel> meta_channel_;
  std::shared_ptr<grpc::Channel> blob_channel_;
  std::unique_ptr<v1::MetaService::Stub> stub_;
};

TEST_F(MetaProcessTest, NoPublishedRowIsLostWhenTheArbiterIsKilledAtAnyTime) {
  StartMeta();
  StartBlob();
  std::mt19937 random(5);
  std::vector<Row> published;
  uint64_t seed = 1;
  for (int round = 0; round < 6; ++round) {
    // One at least, so that the namespace is known; then as many as come before the kill.
    published.push_back(MakeRow(seed++));
    ASSERT_TRUE(PublishSoon(published.back())) << meta_->Err() << blob_->Err();
    std::thread killer([&, wait = std::chrono::microseconds(random() % 60'000)] {
      std::this_thread::sleep_for(wait);
      meta_->Signal(SIGKILL);
    });
    for (int i = 0; i < 200; ++i) {
      Row row = MakeRow(seed++);
      if (!Publish(row).ok()) break;
      published.push_back(std::move(row));
    }
    killer.join();
    EXPECT_EQ(meta_->Wait(), 128 + SIGKILL);
    StartMeta();
    // A reservation tells a new arbiter how many layers the model has.
    published.push_back(MakeRow(seed++));
    ASSERT_TRUE(PublishSoon(published.back())) << meta_->Err();
    for (const Row& row : published) {
      ASSERT_TRUE(WaitUntil([&] { return IsFound(row); })) << round << ": " << row.key();
    }
  }
}

TEST_F(MetaProcessTest, AKilledStoreTakesItsRowsAlongAndBringsThemBack) {
  StartMeta();
  StartBlob();
  const Row row = MakeRow(1);
  ASSERT_TRUE(PublishSoon(row));
  ASSERT_TRUE(WaitUntil([&] { return IsFound(row); }));
  blob_->Signal(SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return !IsFound(row); }));
  StartBlob();
  EXPECT_TRUE(WaitUntil([&] { return IsFound(row); })) << blob_->Err();
}

TEST_F(MetaProcessTest, TheCommandLineListsExplainsAndRemovesCheckpoints) {
  StartMeta();
  StartBlob();
  const Row row = MakeRow(1);
  ASSERT_TRUE(PublishSoon(row));
  ASSERT_TRUE(WaitUntil([&] { return IsFound(row); }));
  const Row reserved = MakeRow(2);
  ASSERT_TRUE(Reserve(reserved).ok());

  const auto listed = RunCli({"checkpoints", "ls", "--meta", meta_address(), "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  ASSERT_EQ(listed.Json()["checkpoints"].size(), 1U);
  EXPECT_EQ(listed.Json()["checkpoints"][0]["key"], row.key());
  EXPECT_EQ(listed.Json()["checkpoints"][0]["token_count"], kTokens);
  EXPECT_EQ(listed.Json()["checkpoints"][0]["slabs"][1]["tier"], "ram_file");
  EXPECT_EQ(listed.Json()["checkpoints"][0]["slabs"][1]["store"], blob_address());

  const auto reservations = RunCli({"reservations", "ls", "--meta", meta_address(), "--json"});
  ASSERT_EQ(reservations.exit_code, 0) << reservations.err;
  ASSERT_EQ(reservations.Json()["reservations"].size(), 1U);
  EXPECT_EQ(reservations.Json()["reservations"][0]["key"], reserved.key());
  EXPECT_EQ(reservations.Json()["reservations"][0]["reason"], "cold");

  std::string other = row.text();
  other[other.size() / 2] ^= 1;
  const auto explained = RunCli(
      {"explain", "--meta", meta_address(), "--text-file", dir_.File("prompt", other), "--json"});
  ASSERT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_EQ(explained.Json()["nearest"]["key"], row.key());
  EXPECT_EQ(explained.Json()["difference"]["offset"], other.size() / 2);

  const auto removed = RunCli({"checkpoints", "rm", "--meta", meta_address(), row.key(), "--json"});
  ASSERT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_EQ(removed.Json()["removed"], 1);
  EXPECT_FALSE(IsFound(row));
  const auto blob = v1::BlobService::NewStub(blob_channel_);
  EXPECT_TRUE(WaitUntil([&] {
    v1::BlobServiceGetStatsResponse stats;
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    return blob->GetStats(&context, {}, &stats).ok() && stats.slabs() == 0;
  }));
  const auto gone =
      RunCli({"explain", "--meta", meta_address(), "--text-file", dir_.File("gone", row.text()),
              "--json", "--model-fp", HexEncode(row.lower.meta.key_namespace.model_fp), "--quant",
              row.lower.meta.key_namespace.quant, "--ctx-params",
              HexEncode(row.lower.meta.key_namespace.ctx_params)});
  ASSERT_EQ(gone.exit_code, 0) << gone.err;
  EXPECT_EQ(gone.Json()["gone"]["key"], row.key());

  EXPECT_EQ(RunCli({"checkpoints", "rm", "--meta", meta_address(), "abc"}).exit_code, 4);
  EXPECT_EQ(RunCli({"checkpoints", "rm", "--meta", meta_address()}).exit_code, 2);
}

TEST_F(MetaProcessTest, ItSaysWhereItServesAndDrainsOnSigterm) {
  const std::string ready = dir_.path() + "/ready";
  StartMeta({"--ready-file", ready, "--metrics-port", "0", "--health-port", "0"});
  ASSERT_TRUE(WaitUntil([&] { return std::filesystem::exists(ready); }));
  auto health = grpc::health::v1::Health::NewStub(meta_channel_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("kvmesh.v1.MetaService");
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(health->Check(&context, request, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  meta_->Signal(SIGTERM);
  EXPECT_EQ(meta_->Wait(), 0) << meta_->Err();
}

TEST_F(MetaProcessTest, WrongFlagsAreNamed) {
  for (const auto& [flags, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--tier-policy", "cold=tape"}, "\"tape\" is none of"},
           {{"--tier-policy", "warm=disk"}, "\"warm=disk\" is not REASON=TIER"},
           {{"--tier-policy", "cold"}, "\"cold\" is not REASON=TIER"},
           {{"--low-watermark", "0.95"}, "--low-watermark is 0.95"},
           {{"--queue-max", "0"}, "--queue-max"},
           {{"--no-such-flag"}, "--no-such-flag"}}) {
    std::vector<std::string> command = {Program("kvmesh-meta")};
    command.insert(command.end(), flags.begin(), flags.end());
    const auto outcome = process_testing::RunProgram(command);
    EXPECT_EQ(outcome.exit_code, 2) << flags[0];
    EXPECT_THAT(outcome.err + outcome.out, ::testing::HasSubstr(says));
  }
}

}  // namespace
}  // namespace kvmesh

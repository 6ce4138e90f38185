#include "tests/process/checkpoints/checkpoint_mesh.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "kvmesh/v1/shard.grpc.pb.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

std::vector<std::string> Joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

v1::GetStatusResponse StatusOf(const ServerProcess& router) {
  auto stub = v1::RouterService::NewStub(rpc::MakeChannel(router.address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetStatusResponse status;
  return stub->GetStatus(&context, {}, &status).ok() ? status : v1::GetStatusResponse();
}

// Transfers and bytes of open puts at a store; -1: it does not answer.
int64_t InFlightAt(const ServerProcess& store) {
  auto stub = v1::BlobService::NewStub(rpc::MakeChannel(store.address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::BlobServiceGetStatsResponse stats;
  if (!stub->GetStats(&context, {}, &stats).ok()) return -1;
  return static_cast<int64_t>(stats.transfers() + stats.in_flight_bytes());
}

// A generation that a fault is to meet running must not be able to end before.
std::string WithLongContext(std::string gguf) {
  constexpr absl::string_view kKey = "llama.context_length";
  constexpr size_t kTypeBytes = 4;
  constexpr uint32_t kContext = 8192;
  const size_t key = gguf.find(kKey.data(), 0, kKey.size());
  EXPECT_NE(key, std::string::npos);
  std::memcpy(gguf.data() + key + kKey.size() + kTypeBytes, &kContext, sizeof(kContext));
  return gguf;
}

}  // namespace

CheckpointMesh::CheckpointMesh(MeshPlan plan)
    : plan_(std::move(plan)),
      model_(
          model_folder_.File("model.gguf", WithLongContext(testing::ReadWholeFile(TinyModel())))) {
  meta_ = std::make_unique<ServerProcess>(
      "meta", Joined({Program("kvmesh-meta"), "--reservation-ttl-seconds", "3",
                      "--lease-ttl-seconds", "3", "--store-silence-seconds", "60"},
                     plan_.meta_flags));
  meta_->Start();
  for (const StorePlan& store : plan_.stores) {
    folders_.push_back(std::make_unique<TempDir>());
    std::vector<std::string> command = {
        Program("kvmesh-blob"),           "--tier", store.tier,      "--budget-bytes",
        absl::StrCat(store.budget_bytes), "--meta", meta_->address()};
    if (store.tier != "ram") command.insert(command.end(), {"--dir", StoreFolder(stores_.size())});
    stores_.push_back(std::make_unique<ServerProcess>("store-" + store.tier, std::move(command)));
    stores_.back()->Start();
  }
  Split(plan_.layers);
}

std::vector<std::string> CheckpointMesh::ShardCommand(const std::string& layers) const {
  return Joined(
      {Program("kvmesh-shard"), "--model", model_, "--layers", layers, "--peers", "*", "--threads",
       "1", "--meta", meta_->address(), "--min-tokens", "16", "--boundary-align-tokens", "16",
       "--orphan-ttl-seconds", absl::StrCat(plan_.orphan_ttl_seconds)},
      plan_.shard_flags);
}

void CheckpointMesh::Split(const std::vector<std::string>& layers) {
  StopShardsAndRouters();
  StartShards(layers);
  std::vector<std::string> addresses;
  addresses.reserve(shards_.size());
  for (const auto& shard : shards_) addresses.push_back(shard->address());
  for (size_t i = 0; i < plan_.routers; ++i) {
    std::vector<std::string> command = {Program("kvmesh-router"), "--model", model_};
    command = Joined(command, {"--shards", absl::StrJoin(addresses, ","), "--meta"});
    command = Joined(command, {meta_->address(), "--resolve-ms", "100", "--heartbeat-ms", "500"});
    command = Joined(command, {"--min-tokens", "16", "--cold-min-tokens", "16"});
    command = Joined(command, {"--boundary-align-tokens", "16", "--boundary-trim-tokens", "4"});
    command = Joined(command, {"--restore-min-tokens", "8", "--lookup-timeout-ms", "3000"});
    command = Joined(command, {"--reserve-timeout-ms", "30000"});
    routers_.push_back(std::make_unique<ServerProcess>(absl::StrCat("router-", i),
                                                       Joined(command, plan_.router_flags)));
    routers_.back()->Start();
  }
  AwaitReady();
}

void CheckpointMesh::StartShards(const std::vector<std::string>& layers) {
  for (const std::string& range : layers) {
    shards_.push_back(std::make_unique<ServerProcess>("shard-" + range, ShardCommand(range)));
    shards_.back()->Start();
  }
}

void CheckpointMesh::StopShardsAndRouters() {
  for (const auto& router : routers_) router->Terminate();
  routers_.clear();
  for (const auto& shard : shards_) shard->Terminate();
  shards_.clear();
}

std::vector<ServerProcess*> CheckpointMesh::All() {
  std::vector<ServerProcess*> all = {meta_.get()};
  for (const auto& store : stores_) all.push_back(store.get());
  for (const auto& shard : shards_) all.push_back(shard.get());
  for (const auto& router : routers_) all.push_back(router.get());
  return all;
}

std::vector<std::string> CheckpointMesh::SlabFiles(size_t i) const {
  std::vector<std::string> files;
  std::error_code error;  // what is gone meanwhile
  for (auto it = std::filesystem::recursive_directory_iterator(StoreFolder(i), error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    // Slabs alone have names of a key, a range and a write.
    const bool slab = it->path().filename().string().size() > 100;
    if (slab && !absl::StrContains(path, "/quarantine/")) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

void CheckpointMesh::AwaitReady() {
  EXPECT_TRUE(WaitUntil([this] {
    const v1::MetaServiceGetStatsResponse stats = MetaStats();
    const auto serving =
        std::count_if(stats.stores().begin(), stats.stores().end(),
                      [](const v1::StoreStatus& store) { return store.state() == "SERVING"; });
    if (static_cast<size_t>(serving) < stores_.size()) return false;
    return std::all_of(routers_.begin(), routers_.end(),
                       [](const auto& router) { return StatusOf(*router).ready(); });
  })) << "the mesh is not ready: "
      << MetaStats().ShortDebugString();
}

void CheckpointMesh::Connect() {
  for (size_t i = 0; i < routers_.size(); ++i) {
    EXPECT_TRUE(Ask(AskFor(PromptText(absl::StrCat("connects ", i))), i).status.ok());
  }
  AwaitSaved();
  EvictAll();
}

void CheckpointMesh::EvictAll() {
  auto stub = v1::MetaService::NewStub(rpc::MakeChannel(meta_->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::EvictRowsRequest request;
  request.set_all(true);
  v1::EvictRowsResponse response;
  const grpc::Status status = stub->EvictRows(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.row_count(), 0U);
  EXPECT_TRUE(WaitUntil([this] { return Rows().empty(); }));
}

bool CheckpointMesh::IsIdle() const {
  return std::all_of(routers_.begin(), routers_.end(),
                     [](const auto& router) { return process_testing::IsIdle(StatusOf(*router)); });
}

void CheckpointMesh::AwaitSaved() {
  EXPECT_TRUE(WaitUntil([this] {
    if (!IsIdle()) return false;
    const v1::MetaServiceGetStatsResponse stats = MetaStats();
    return stats.incarnation().number() > 0 && stats.reservations() == 0;
  })) << "a save does not end: "
      << MetaStats().ShortDebugString();
}

Answer CheckpointMesh::Ask(const v1::GenerateRequest& request, size_t router) const {
  auto stub = v1::RouterService::NewStub(rpc::MakeChannel(routers_[router]->address()));
  return Generate(*stub, request);
}

std::future<Answer> CheckpointMesh::AskBeside(const v1::GenerateRequest& request,
                                              size_t router) const {
  return std::async(std::launch::async, [this, request, router] { return Ask(request, router); });
}

bool CheckpointMesh::SomeGenerationIs(const std::string& state, size_t router) const {
  auto stub = v1::RouterService::NewStub(rpc::MakeChannel(routers_[router]->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListGenerationsResponse list;
  if (!stub->ListGenerations(&context, {}, &list).ok()) return false;
  return std::any_of(list.generations().begin(), list.generations().end(),
                     [&](const v1::GenerationInfo& one) { return one.state() == state; });
}

std::vector<uint32_t> CheckpointMesh::Tokenize(const std::string& text) const {
  auto stub = v1::RouterService::NewStub(rpc::MakeChannel(routers_[0]->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = stub->Tokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.ids().begin(), response.ids().end()};
}

uint64_t CheckpointMesh::HeldAt(size_t shard) const {
  auto stub = v1::ShardService::NewStub(rpc::MakeChannel(shards_[shard]->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListSessionsResponse list;
  const grpc::Status status = stub->ListSessions(&context, {}, &list);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return list.sessions_size() == 1 ? list.sessions(0).held() : 0;
}

v1::MetaServiceGetStatsResponse CheckpointMesh::MetaStats() const {
  auto stub = v1::MetaService::NewStub(rpc::MakeChannel(meta_->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::MetaServiceGetStatsResponse stats;
  return stub->GetStats(&context, {}, &stats).ok() ? stats : v1::MetaServiceGetStatsResponse();
}

std::vector<v1::RowSummary> CheckpointMesh::Rows() const {
  auto stub = v1::MetaService::NewStub(rpc::MakeChannel(meta_->address()));
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListRowsResponse rows;
  const grpc::Status status = stub->ListRows(&context, {}, &rows);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {rows.rows().begin(), rows.rows().end()};
}

std::string CheckpointMesh::WhatIsLeft() {
  const v1::MetaServiceGetStatsResponse stats = MetaStats();
  if (stats.incarnation().number() == 0) return "the arbiter does not answer";
  if (stats.reservations() + stats.leases() + stats.waiters() > 0) return stats.ShortDebugString();
  for (size_t i = 0; i < stores_.size(); ++i) {
    const int64_t in_flight = InFlightAt(*stores_[i]);
    if (in_flight != 0) return absl::StrCat(stores_[i]->name(), " is busy: ", in_flight);
    for (const std::filesystem::path& entry :
         std::filesystem::recursive_directory_iterator(folders_[i]->path())) {
      const std::string name = entry.filename().string();
      if (absl::StartsWith(name, ".tmp-")) return absl::StrCat("a temporary file: ", name);
    }
  }
  for (const auto& router : routers_) {
    const v1::GetStatusResponse status = StatusOf(*router);
    if (!status.ready()) return absl::StrCat(router->name(), ": ", status.not_ready_reason());
    if (std::string runs = WhatRuns(status); !runs.empty()) return runs;
  }
  return "";
}

void CheckpointMesh::ExpectNothingLeft() {
  process_testing::ExpectNothingLeft([this] { return WhatIsLeft(); });
}

std::string PromptText(const std::string& topic, size_t bytes) {
  // Topics are alike in their first words; what is stored of one must not serve another.
  return FilledText(std::string(topic.rbegin(), topic.rend()), topic.size(), bytes);
}

v1::GenerateRequest AskFor(const std::string& prompt, uint32_t tokens, v1::CacheUse cache) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_options()->set_max_tokens(tokens);
  request.mutable_options()->set_ignore_eos(true);
  request.mutable_options()->set_cache(cache);
  return request;
}

v1::GenerateRequest Stateless(v1::GenerateRequest request) {
  request.mutable_options()->set_cache(v1::CACHE_USE_STATELESS);
  return request;
}

// 20 alternatives are some 250 bytes a token; beyond 256 undelivered tokens the router waits, and
// before that either end of the connection holds 64 KiB.
v1::GenerateRequest Verbose(v1::GenerateRequest request) {
  request.mutable_options()->set_max_tokens(1000);
  request.mutable_options()->mutable_sampling()->set_logprobs(true);
  request.mutable_options()->mutable_sampling()->set_top_logprobs(20);
  return request;
}

std::unique_ptr<v1::RouterService::Stub> PlainStub(const ServerProcess& router) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return v1::RouterService::NewStub(
      grpc::CreateCustomChannel(router.address(), grpc::InsecureChannelCredentials(), arguments));
}

bool IsWhole(const v1::Usage& usage) {
  return usage.outcome() == "EXACT" ||
         (usage.outcome() == "PARTIAL" && usage.cached_tokens() + 1 == usage.prompt_tokens());
}

v1::GenerateRequest WithIds(v1::GenerateRequest request) {
  request.mutable_options()->set_return_token_ids(true);
  return request;
}

v1::GenerateRequest NextTurn(const Answer& before) {
  v1::GenerateRequest request = AskFor("");
  auto* ids = request.mutable_token_ids()->mutable_ids();
  *ids = before.finished.effective_prompt_ids();
  ids->MergeFrom(before.finished.token_ids());
  ids->MergeFrom(before.finished.effective_prompt_ids());
  request.mutable_options()->set_parent_key(before.finished.finish_key());
  return request;
}

}  // namespace kvmesh::process_testing

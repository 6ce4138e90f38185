// A mesh with checkpoints, of processes that a test disturbs one by one. The gates are so low that
// a few hundred bytes of prompt pass them, and what nobody renews lapses within seconds.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kvmesh/v1/meta.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tests/process/checkpoints/server_process.h"

namespace kvmesh::process_testing {

struct StorePlan {
  std::string tier = "disk";
  uint64_t budget_bytes = 64 << 20;
};

// The layers are those of the tiny model, whose context is made longer: 8,192 tokens.
struct MeshPlan {
  std::vector<std::string> layers = {"0:2", "2:4"};  // of the shards
  std::vector<StorePlan> stores = {{}};
  size_t routers = 1;
  int orphan_ttl_seconds = 3;
  // Beyond those of the fixture.
  std::vector<std::string> meta_flags;
  std::vector<std::string> shard_flags;
  std::vector<std::string> router_flags;
};

class CheckpointMesh {
 public:
  // Starts it and waits until it is ready; fails the test otherwise.
  explicit CheckpointMesh(MeshPlan plan = {});

  ServerProcess& meta() { return *meta_; }
  ServerProcess& store(size_t i = 0) { return *stores_[i]; }
  ServerProcess& shard(size_t i) { return *shards_[i]; }
  ServerProcess& router(size_t i = 0) { return *routers_[i]; }
  std::vector<ServerProcess*> All();
  // Where a store keeps its slabs.
  std::string StoreFolder(size_t i = 0) const { return folders_[i]->path() + "/slabs"; }
  // The files of slabs that lie there.
  std::vector<std::string> SlabFiles(size_t i = 0) const;

  // Other shards, in place of those that are there, and routers that use them.
  void Split(const std::vector<std::string>& layers);
  void StopShardsAndRouters();
  // Until the routers have a route, and the arbiter knows what the stores hold.
  void AwaitReady();
  // Saves something and evicts it again, so that all processes are connected: a connection to one
  // that is frozen fails before long, where one that is there waits.
  void Connect();
  // No router has anything under way, nor saves of what is answered still to hand out.
  bool IsIdle() const;
  // Until every save of the answers so far has become rows or nothing.
  void AwaitSaved();

  Answer Ask(const v1::GenerateRequest& request, size_t router = 0) const;
  // The answer of a call that goes on beside the test.
  std::future<Answer> AskBeside(const v1::GenerateRequest& request, size_t router = 0) const;
  // What the router says a generation is at: "looking for a checkpoint", "prefill", "decode".
  bool SomeGenerationIs(const std::string& state, size_t router = 0) const;

  // The model's own ids of a text.
  std::vector<uint32_t> Tokenize(const std::string& text) const;
  // Tokens of the one session that a shard holds; 0: it holds none, or several.
  uint64_t HeldAt(size_t shard) const;

  v1::MetaServiceGetStatsResponse MetaStats() const;
  std::vector<v1::RowSummary> Rows() const;
  // Waits until nothing is left of what was under way: reservations, leases, waiters, sessions that
  // are live, generations, open transfers, temporary files.
  void ExpectNothingLeft();

 private:
  std::string WhatIsLeft();
  void EvictAll();
  std::vector<std::string> ShardCommand(const std::string& layers) const;
  void StartShards(const std::vector<std::string>& layers);

  const MeshPlan plan_;
  const TempDir model_folder_;
  const std::string model_;
  std::vector<std::unique_ptr<TempDir>> folders_;  // by store
  std::unique_ptr<ServerProcess> meta_;
  std::vector<std::unique_ptr<ServerProcess>> stores_;
  std::vector<std::unique_ptr<ServerProcess>> shards_;
  std::vector<std::unique_ptr<ServerProcess>> routers_;
};

// ASCII words, `bytes` of them, other ones for every `topic`.
std::string PromptText(const std::string& topic, size_t bytes = 200);

// Greedy, exactly `tokens` tokens.
v1::GenerateRequest AskFor(const std::string& prompt, uint32_t tokens = 12,
                           v1::CacheUse cache = v1::CACHE_USE_ON);

// The same with so much beside each token that a client of PlainStub which stops reading stops the
// generation long before its 1,000 tokens have run.
v1::GenerateRequest Verbose(v1::GenerateRequest request);
// Over a connection whose window does not grow while nobody reads.
std::unique_ptr<v1::RouterService::Stub> PlainStub(const ServerProcess& router);

// The same without any cache: what the others must equal.
v1::GenerateRequest Stateless(v1::GenerateRequest request);

// Whether all of a prompt was stored: a full hit, or all but the last token, where the snapshot was
// taken when the next token had been run already and so has no output row.
bool IsWhole(const v1::Usage& usage);

// The same, with what NextTurn needs in its answer.
v1::GenerateRequest WithIds(v1::GenerateRequest request);
// The conversation so far and its prompt once more, under the finish_key of `before`.
v1::GenerateRequest NextTurn(const Answer& before);

}  // namespace kvmesh::process_testing

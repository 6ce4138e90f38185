// A whole mesh in one process, over loopback gRPC: real shard and router servers, the toy engine, a
// proxy in front of each shard.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "services/router/grpc/router_server.h"
#include "services/shard/grpc/shard_server.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/forward_proxy.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::testing {

// Polls until `condition` holds; false after ten seconds.
bool Eventually(const std::function<bool()>& condition);

// Lets the engines that use it pass, or stops them. Thread-safe.
class Gate {
 public:
  void Close();
  void Open();
  // Called by an engine, before a layer: waits while the gate is closed, at most 30 s.
  void Pass();
  // How many are waiting, and how many have asked so far.
  int waiting() const;
  int passed() const;

 private:
  mutable Mutex mutex_;
  CondVar opened_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int passed_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What a test says of one shard; the rest is as in the product.
struct ShardSetup {
  LayerRange layers;
  uint32_t sessions_max = 8;
  uint64_t bytes_max = uint64_t{1} << 30;
  bool caching = true;
  InstanceId instance = RandomId<InstanceId>();
  uint32_t context_length = 4096;
};

// What a client got.
struct Answer {
  absl::Status status;
  std::string generation_id;
  std::vector<uint32_t> ids;
  std::string text;
  v1::Finished finished;
};

struct Request {
  std::string prompt = "hello mesh";
  uint32_t max_tokens = 12;
  absl::Duration timeout = absl::Seconds(60);
  v1::CacheUse cache = v1::CACHE_USE_ON;
};
std::vector<uint32_t> Undisturbed(const Request& request);

// One process that a test may kill and start again, and the proxy by which everybody reaches it.
class MeshShard {
 public:
  MeshShard(const ShardSetup& setup, const Clock& clock);
  ~MeshShard();

  // Hooks may be set while nothing passes; they are asked for each message.
  ProxyHooks hooks;
  Gate gate;

  void Kill();
  // A new process on the same port; the setup's instance id unless `fresh_instance`.
  void Start(bool fresh_instance);
  ShardSetup& setup() { return setup_; }
  shard::ShardServer& server() { return *server_; }
  ForwardProxy& proxy() { return *proxy_; }
  std::string address() const { return proxy_->address(); }
  std::vector<shard::SessionView> Sessions();
  double Misses(const std::string& cause);
  double Counter(const std::string& name, const metrics::Labels& labels = {});

 private:
  ShardSetup setup_;
  const Clock& clock_;
  int port_ = 0;
  std::unique_ptr<shard::ShardServer> server_;
  std::unique_ptr<ForwardProxy> proxy_;
};

class Mesh {
 public:
  // Every shard may dial every address on loopback.
  explicit Mesh(const std::vector<ShardSetup>& setups);
  // `options` without discovery, which the mesh fills in. Waits for a route.
  void AddRouter(router::RouterOptions options = {});
  ~Mesh();

  Answer Generate(const Request& request, size_t router = 0);
  // In a thread of its own.
  std::future<Answer> Start(const Request& request, size_t router = 0);
  // Cancels the call of the newest Start.
  void CancelNewest();
  // CancelGeneration of the only generation that runs at the first router.
  absl::Status CancelOnly();

  MeshShard& shard(size_t i) { return *shards_[i]; }
  router::RouterServer& router(size_t i = 0) { return *routers_[i]; }
  size_t shards() const { return shards_.size(); }
  // Of all routers together.
  double RouterCounter(const std::string& name, const metrics::Labels& labels = {});
  double RouterMisses(const std::string& cause);
  // No shard holds a session, within ten seconds.
  bool NothingHeld();
  ShiftedClock& shard_clock() { return shard_clock_; }

 private:
  Answer Call(const Request& request, size_t router,
              const std::shared_ptr<grpc::ClientContext>& context);

  ShiftedClock shard_clock_;
  const MonotonicClock router_clock_;
  std::vector<std::unique_ptr<MeshShard>> shards_;
  std::vector<std::unique_ptr<router::RouterServer>> routers_;
  std::vector<std::unique_ptr<v1::RouterService::Stub>> stubs_;
  std::shared_ptr<grpc::ClientContext> newest_;  // shared with the call's thread
};

// Two shards of three layers each.
std::vector<ShardSetup> TwoShards();

}  // namespace kvmesh::testing

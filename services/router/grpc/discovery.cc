#include "services/router/grpc/discovery.h"

#include <glog/logging.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/rpc/channel.h"
#include "services/router/grpc/resolver.h"
#include "services/router/grpc/watch_codec.h"

namespace kvmesh::router {
namespace {

constexpr int kHeartbeatsMissedMax = 3;
constexpr absl::Duration kWatchRetry = absl::Milliseconds(250);
constexpr size_t kAddressesMax = 1024;

// Equal in everything that decides about routes; load alone is no change.
bool ServeTheSame(const ShardFacts& a, const ShardFacts& b) {
  return a.instance == b.instance && a.layers == b.layers && a.layer_count == b.layer_count &&
         a.layer_digests == b.layer_digests && a.embedding_digest == b.embedding_digest &&
         a.head_digest == b.head_digest && a.config_digest == b.config_digest &&
         a.tokenizer_digest == b.tokenizer_digest && a.protocol_version == b.protocol_version &&
         a.quant == b.quant && a.numerics_id == b.numerics_id &&
         a.supports_kv_cache == b.supports_kv_cache && a.draining == b.draining;
}

}  // namespace

// One Watch stream. Deletes itself in OnDone.
class Discovery::Watch final : public grpc::ClientReadReactor<v1::WatchResponse> {
 public:
  Watch(Discovery& owner, std::shared_ptr<v1::ShardService::Stub> stub, std::string address,
        absl::Duration heartbeat)
      : owner_(owner), stub_(std::move(stub)), address_(std::move(address)) {
    request_.mutable_heartbeat()->set_value(
        static_cast<uint64_t>(absl::ToInt64Milliseconds(heartbeat)));
  }

  void Start() {
    stub_->async()->Watch(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    owner_.OnFacts(this, DecodeWatch(address_, response_));
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    owner_.OnWatchEnd(this, status.ok() ? "its Watch stream ended" : status.error_message());
    delete this;
  }

 private:
  Discovery& owner_;
  const std::shared_ptr<v1::ShardService::Stub> stub_;  // shared: its shard may be forgotten first
  const std::string address_;
  grpc::ClientContext context_;
  v1::WatchRequest request_;
  v1::WatchResponse response_;
};

Discovery::Discovery(DiscoveryOptions options, std::shared_ptr<rpc::TlsIdentity> tls,
                     const Clock& clock)
    : options_(std::move(options)),
      tls_(std::move(tls)),
      clock_(clock),
      resolver_([this] { ResolveLoop(); }) {}

Discovery::~Discovery() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [address, shard] : shards_) {
      if (shard.watch != nullptr) shard.watch->Cancel();
    }
    wake_.NotifyAll();
  }
  resolver_.join();
  // Cancelled streams end; without their last word this object must not go.
  MutexLock lock(&mutex_);
  while (watches_ > 0) wake_.WaitFor(&mutex_, absl::Seconds(1));
}

void Discovery::ResolveLoop() {
  std::map<std::string, std::vector<std::string>> known;  // a name that fails keeps its addresses
  for (;;) {
    std::set<std::string> addresses;
    for (const std::string& name : options_.names) {
      absl::StatusOr<std::vector<std::string>> found = options_.resolve(name);
      if (found.ok()) {
        known[name] = *std::move(found);
      } else {
        LOG_EVERY_N(WARNING, 30) << "--shards: " << found.status().message();
      }
      addresses.insert(known[name].begin(), known[name].end());
    }
    ApplyAddresses({addresses.begin(), addresses.end()});
    MutexLock lock(&mutex_);
    const absl::Time until = absl::Now() + options_.resolve_interval;
    while (!stopping_ && absl::Now() < until) wake_.WaitFor(&mutex_, until - absl::Now());
    if (stopping_) return;
  }
}

void Discovery::ApplyAddresses(const std::vector<std::string>& addresses) {
  std::vector<Watch*> to_start;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    ForgetAllBut(addresses);
    for (const std::string& address : addresses) {
      if (shards_.contains(address) || shards_.size() >= kAddressesMax) continue;
      Shard& shard = shards_[address];
      shard.stub = v1::ShardService::NewStub(rpc::MakeChannel(address, tls_, rpc::Role::kShard));
      shard.view.address = address;
      shard.view.error = "not reached yet";
      to_start.push_back(NewWatch(shard));
    }
  }
  for (Watch* watch : to_start) watch->Start();
}

void Discovery::ForgetAllBut(const std::vector<std::string>& addresses) {
  for (auto it = shards_.begin(); it != shards_.end();) {
    if (std::binary_search(addresses.begin(), addresses.end(), it->first)) {
      ++it;
      continue;
    }
    if (it->second.view.connected) changed_ = true;
    if (it->second.watch != nullptr) it->second.watch->Cancel();
    it = shards_.erase(it);
  }
}

Discovery::Watch* Discovery::NewWatch(Shard& shard) {
  shard.watch = new Watch(*this, shard.stub, shard.view.address, options_.heartbeat);
  shard.last_heard = clock_.Now();
  ++watches_;
  return shard.watch;
}

Discovery::Shard* Discovery::Find(const Watch* watch) {
  for (auto& [address, shard] : shards_) {
    if (shard.watch == watch) return &shard;
  }
  return nullptr;
}

void Discovery::OnFacts(Watch* watch, absl::StatusOr<ShardFacts> facts) {
  MutexLock lock(&mutex_);
  Shard* shard = Find(watch);
  if (shard == nullptr) return;
  shard->last_heard = clock_.Now();
  if (!facts.ok()) return Lose(*shard, std::string(facts.status().message()));
  if (!shard->view.connected || !ServeTheSame(shard->view.facts, *facts)) {
    changed_ = true;
    LOG(INFO) << "shard " << shard->view.address << " instance " << facts->instance.ToHex()
              << " serves layers [" << facts->layers.begin << "," << facts->layers.end << ")"
              << (facts->draining ? ", draining" : "");
  }
  shard->view.connected = true;
  shard->view.error.clear();
  shard->view.facts = *std::move(facts);
}

void Discovery::OnWatchEnd(Watch* watch, const std::string& error) {
  MutexLock lock(&mutex_);
  if (Shard* shard = Find(watch); shard != nullptr) {
    shard->watch = nullptr;
    shard->retry_at = clock_.Now() + kWatchRetry;
    Lose(*shard, error);
  }
  --watches_;
  wake_.NotifyAll();
}

void Discovery::Lose(Shard& shard, const std::string& why) {
  if (shard.view.connected && !stopping_) {
    changed_ = true;
    LOG(WARNING) << "shard " << shard.view.address << " is gone: " << why;
  }
  shard.view.connected = false;
  shard.view.error = why;
}

void Discovery::Tick() {
  const MonoTime now = clock_.Now();
  std::vector<Watch*> to_start;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    for (auto& [address, shard] : shards_) {
      if (shard.watch == nullptr) {
        if (now >= shard.retry_at) to_start.push_back(NewWatch(shard));
      } else if (now - shard.last_heard > kHeartbeatsMissedMax * options_.heartbeat) {
        shard.last_heard = now;
        Lose(shard, "three heartbeats are missing");
        shard.watch->Cancel();
      }
    }
  }
  for (Watch* watch : to_start) watch->Start();
}

std::vector<ShardFacts> Discovery::Facts() const {
  MutexLock lock(&mutex_);
  std::vector<ShardFacts> facts;
  std::set<InstanceId> seen;
  for (const auto& [address, shard] : shards_) {
    if (shard.view.connected && seen.insert(shard.view.facts.instance).second) {
      facts.push_back(shard.view.facts);
    }
  }
  return facts;
}

std::vector<ShardView> Discovery::Views() const {
  MutexLock lock(&mutex_);
  std::vector<ShardView> views;
  for (const auto& [address, shard] : shards_) views.push_back(shard.view);
  return views;
}

std::shared_ptr<v1::ShardService::Stub> Discovery::StubFor(const std::string& address) const {
  MutexLock lock(&mutex_);
  const auto it = shards_.find(address);
  return it == shards_.end() ? nullptr : it->second.stub;
}

}  // namespace kvmesh::router

#include "services/shard/grpc/peer_channels.h"

#include <utility>

#include "common/rpc/channel.h"

namespace kvmesh::shard {

std::shared_ptr<grpc::Channel> PeerChannels::Take(const std::string& address) {
  {
    MutexLock lock(&mutex_);
    const auto it = idle_.find(address);
    if (it != idle_.end()) {
      std::shared_ptr<grpc::Channel> channel = std::move(it->second.back());
      it->second.pop_back();
      if (it->second.empty()) idle_.erase(it);
      --idle_count_;
      return channel;
    }
  }
  return rpc::MakeChannel(address, tls_, rpc::Role::kShard);
}

void PeerChannels::Return(const std::string& address, std::shared_ptr<grpc::Channel> channel,
                          bool broken) {
  std::map<std::string, std::vector<std::shared_ptr<grpc::Channel>>> let_go;  // outside the lock
  MutexLock lock(&mutex_);
  if (broken) {
    // The others to that peer are as good as broken.
    if (const auto it = idle_.find(address); it != idle_.end()) {
      idle_count_ -= it->second.size();
      let_go.insert(idle_.extract(it));
    }
    return;
  }
  // Full of peers that may be long gone: start afresh.
  if (idle_count_ >= idle_max_) {
    let_go.swap(idle_);
    idle_count_ = 0;
  }
  idle_[address].push_back(std::move(channel));
  ++idle_count_;
}

}  // namespace kvmesh::shard

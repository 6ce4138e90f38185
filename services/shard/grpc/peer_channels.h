// Connections to the next hops. A stream has one to itself for as long as it lives, so that the
// prefill chunks of one session never stand before a step of another; idle ones wait for the next
// stream to that peer. Thread-safe.
#pragma once

#include <grpcpp/channel.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/channel.h"

namespace kvmesh::shard {

class PeerChannels {
 public:
  // `idle_max`: idle connections kept, to all peers together. `tls`: null for plaintext.
  explicit PeerChannels(size_t idle_max, std::shared_ptr<rpc::TlsIdentity> tls = nullptr)
      : idle_max_(idle_max), tls_(std::move(tls)) {}

  // An idle connection to `address`, else a new one, which connects at its first call.
  std::shared_ptr<grpc::Channel> Take(const std::string& address);
  // What Take gave, once the stream has ended. A broken one is let go: it would back off before it
  // tried again.
  void Return(const std::string& address, std::shared_ptr<grpc::Channel> channel, bool broken);

 private:
  const size_t idle_max_;
  const std::shared_ptr<rpc::TlsIdentity> tls_;
  Mutex mutex_;
  size_t idle_count_ ABSL_GUARDED_BY(mutex_) = 0;
  // Shared with the streams' stubs.
  std::map<std::string, std::vector<std::shared_ptr<grpc::Channel>>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::shard

// Messages of a unary method that are used again, with all the memory that they have: to allocate
// and to free it costs a short call more than what it is for. Thread-safe.
//
// A request comes cleared. A response comes as the call before has left it, or nested messages
// would go: the method writes every field, or clears it first.
#pragma once

#include <grpcpp/support/message_allocator.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/parsed.h"

namespace kvmesh::rpc {

template <typename Request, typename Response>
class MessagePool final : public grpc::MessageAllocator<Parsed<Request>, Response> {
 public:
  // Keeps at most `idle_max` pairs that no call uses, none whose request is above `bytes_max`. As
  // any grpc::MessageAllocator it outlives the server.
  MessagePool(size_t idle_max, size_t bytes_max) : idle_max_(idle_max), bytes_max_(bytes_max) {}

  grpc::MessageHolder<Parsed<Request>, Response>* AllocateMessages() override {
    MutexLock lock(&mutex_);
    if (idle_.empty()) return new Pair(*this);
    Pair* pair = idle_.back().release();
    idle_.pop_back();
    return pair;
  }
  size_t idle() const {
    MutexLock lock(&mutex_);
    return idle_.size();
  }

 private:
  class Pair final : public grpc::MessageHolder<Parsed<Request>, Response> {
   public:
    explicit Pair(MessagePool& pool) : pool_(pool) {
      this->set_request(&request_);
      this->set_response(&response_);
    }
    void Release() override { pool_.TakeBack(std::unique_ptr<Pair>(this)); }

    MessagePool& pool_;
    Parsed<Request> request_;
    Response response_;
  };

  void TakeBack(std::unique_ptr<Pair> pair) {
    const bool small = pair->request_.message.ByteSizeLong() <= bytes_max_;
    pair->request_.message.Clear();
    MutexLock lock(&mutex_);
    if (small && idle_.size() < idle_max_) idle_.push_back(std::move(pair));
  }

  const size_t idle_max_;
  const size_t bytes_max_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Pair>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::rpc

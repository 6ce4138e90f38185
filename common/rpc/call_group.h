// The calls that one owner has under way, so that all of them end at once when the owner stops.
// Thread-safe.
#pragma once

#include <grpcpp/client_context.h>

#include <set>

#include "common/base/mutex.h"

namespace kvmesh::rpc {

class CallGroup {
 public:
  // Ends the calls under way as Cancelled, and every later one as soon as it begins.
  void CancelAll();
  bool cancelled() const;

  // One call: in the group for as long as this lives. `group` may be null.
  class Member {
   public:
    // Both outlive it.
    Member(CallGroup* group, grpc::ClientContext& context);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

   private:
    CallGroup* const group_;
    grpc::ClientContext& context_;
  };

 private:
  mutable Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::rpc

#include "common/rpc/call_group.h"

namespace kvmesh::rpc {

// A call leaves the group before its context goes, so that none is cancelled after its end.
void CallGroup::CancelAll() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
}

bool CallGroup::cancelled() const {
  MutexLock lock(&mutex_);
  return cancelled_;
}

CallGroup::Member::Member(CallGroup* group, grpc::ClientContext& context)
    : group_(group), context_(context) {
  if (group_ == nullptr) return;
  MutexLock lock(&group_->mutex_);
  group_->calls_.insert(&context_);
  if (group_->cancelled_) context_.TryCancel();
}

CallGroup::Member::~Member() {
  if (group_ == nullptr) return;
  MutexLock lock(&group_->mutex_);
  group_->calls_.erase(&context_);
}

}  // namespace kvmesh::rpc

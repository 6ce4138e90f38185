#include "common/rpc/health.h"

#include <utility>

namespace kvmesh::rpc {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch stream: writes the status at once and at every change; the newest one wins while a
// write is under way.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* service, std::string name) : service_(service), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  void Publish(Status status) {
    MutexLock lock(&mutex_);
    wanted_ = status;
    MaybeWrite();
  }

  void End() {
    MutexLock lock(&mutex_);
    FinishOnce();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) {
      MaybeWrite();
    } else {
      FinishOnce();
    }
  }

  void OnCancel() override {
    MutexLock lock(&mutex_);
    FinishOnce();
  }

  void OnDone() override {
    {
      MutexLock lock(&service_->mutex_);
      service_->watchers_.erase(this);
    }
    delete this;
  }

 private:
  void MaybeWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || wanted_ == sent_) return;
    writing_ = true;
    sent_ = wanted_;
    response_.set_status(sent_);
    StartWrite(&response_);
  }

  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "health watch ended"));
  }

  HealthService* const service_;
  const std::string name_;
  Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  Status sent_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  Status wanted_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  HealthCheckResponse response_;
};

HealthService::HealthService() {
  CheckUnary("Check", &HealthService::Check);
  CheckServerStreaming("Watch", &HealthService::Watch);
}

bool HealthService::Known(const std::string& name) const {
  return name.empty() || name == kLivenessName || names_.count(name) > 0;
}

HealthService::Status HealthService::StatusOf(const std::string& name) const {
  if (!Known(name)) return HealthCheckResponse::SERVICE_UNKNOWN;
  const bool good = name == kLivenessName ? alive_ : serving_;
  return good ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::SetNames(std::vector<std::string> names) {
  MutexLock lock(&mutex_);
  names_ = {names.begin(), names.end()};
}

void HealthService::SetServing(bool serving) {
  MutexLock lock(&mutex_);
  serving_ = serving;
  PublishAll();
}

void HealthService::SetAlive(bool alive) {
  MutexLock lock(&mutex_);
  if (std::exchange(alive_, alive) == alive) return;
  PublishAll();
}

void HealthService::PublishAll() {
  for (Watcher* watcher : watchers_) watcher->Publish(StatusOf(watcher->name()));
}

void HealthService::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  for (Watcher* watcher : watchers_) watcher->End();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  MutexLock lock(&mutex_);
  if (!Known(request->service())) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such service"));
    return reactor;
  }
  response->set_status(StatusOf(request->service()));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* /*context*/, const HealthCheckRequest* request) {
  auto* watcher = new Watcher(this, request->service());
  MutexLock lock(&mutex_);
  watchers_.insert(watcher);
  watcher->Publish(StatusOf(watcher->name()));
  if (stopped_) watcher->End();
  return watcher;
}

}  // namespace kvmesh::rpc

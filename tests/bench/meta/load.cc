#include "tests/bench/meta/load.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "common/base/mutex.h"
#include "tests/bench/meta/bench_parts.h"

namespace kvmesh::bench {
namespace {

constexpr size_t kUnderWayMax = 5000;

struct Call {
  grpc::ClientContext context;
  kvmesh::v1::LookupResponse response;
  double start = 0;
};

// Shared by the calls under way and who waits for them.
class Calls {
 public:
  Calls(const StartCall& start, const std::vector<kvmesh::v1::LookupRequest>& requests,
        bool must_find)
      : start_(start), requests_(requests), must_find_(must_find) {}

  // `then` runs when the call has ended.
  void Begin(size_t connection, double at, std::function<void()> then) {
    under_way_.fetch_add(1);
    auto call = std::make_shared<Call>();
    call->start = at;
    call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    const kvmesh::v1::LookupRequest& request = requests_[next_.fetch_add(1) % requests_.size()];
    start_(connection, &call->context, &request, &call->response,
           [this, call, then = std::move(then)](const grpc::Status& status) {
             if (!status.ok()) Fail("a call failed: " + status.error_message());
             if (must_find_ && !call->response.found()) Fail("a prompt was not found");
             const double took = (Now() - call->start) * 1e6;
             {
               MutexLock lock(&mutex_);
               latencies_us_.push_back(took);
             }
             then();
             under_way_.fetch_sub(1);
           });
  }
  size_t under_way() const { return under_way_.load(); }
  LoadResult End(double started) {
    AwaitTrue("the last call", [this] { return under_way_.load() == 0; });
    MutexLock lock(&mutex_);
    return {.seconds = Now() - started, .latencies_us = std::move(latencies_us_)};
  }

 private:
  const StartCall& start_;
  const std::vector<kvmesh::v1::LookupRequest>& requests_;
  const bool must_find_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> under_way_{0};
  Mutex mutex_;
  std::vector<double> latencies_us_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

LoadResult AtFullSpeed(const StartCall& start, size_t connections, size_t in_flight, double seconds,
                       const std::vector<kvmesh::v1::LookupRequest>& requests) {
  Calls calls(start, requests, true);
  const double started = Now();
  std::function<void(size_t)> next = [&](size_t connection) {
    if (Now() - started >= seconds) return;
    calls.Begin(connection, Now(), [&next, connection] { next(connection); });
  };
  for (size_t i = 0; i < connections * in_flight; ++i) next(i % connections);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return calls.End(started);
}

LoadResult AtRate(const StartCall& start, size_t connections, double per_second,
                  const std::function<bool()>& stop,
                  const std::vector<kvmesh::v1::LookupRequest>& requests, bool must_find) {
  Calls calls(start, requests, must_find);
  const double started = Now();
  for (size_t i = 0; !stop(); ++i) {
    const double at = started + static_cast<double>(i) / per_second;
    if (const double early = at - Now(); early > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(early));
    }
    if (calls.under_way() >= kUnderWayMax) Fail("the calls are not answered at the rate asked for");
    calls.Begin(i % connections, at, [] {});
  }
  return calls.End(started);
}

}  // namespace kvmesh::bench

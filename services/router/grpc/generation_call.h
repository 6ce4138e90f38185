// One Generate or Chat call: turns tokens into events, keeps what the client has not taken yet, and
// times it all.
//
// Thread-safe. Shared by the reactor (until its OnDone) and the driver (until the generation is
// over).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/trace.h"
#include "common/rpc/span.h"
#include "kvmesh/v1/router.pb.h"
#include "services/router/core/text_assembler.h"
#include "services/router/grpc/generation_driver.h"
#include "services/router/grpc/prepare.h"

namespace kvmesh::router {

// The reactor's side. Called under the call's lock; neither blocks nor calls back.
class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual void Write(v1::GenerateResponse&& event) = 0;  // OnWriteDone follows
  virtual void End(const absl::Status& status) = 0;      // once, last
};

class GenerationCall final : public GenerationClient {
 public:
  GenerationCall(EventWriter& writer, const Clock& clock, RouterMetrics& metrics);

  // From the reactor.
  void OnWriteDone(bool ok);
  void OnClientGone();
  void Detach();  // the writer goes away

  // Nobody waits for the answer any more: work that has not begun need not begin.
  bool client_gone();

  // The call's span, a part of `parent`; the trace that the work for it is a part of.
  Trace StartSpan(const Trace& parent, const GenerationSpec& spec);

  // Then exactly one of: Fail, or Begin and later Bind with the driver that runs it.
  void Fail(const absl::Status& status);
  void Begin(const PreparedRequest& request, const text::Tokenizer& tokenizer);
  void Bind(std::shared_ptr<GenerationDriver> driver);

  // From the driver.
  bool wants_tokens() const override;
  FinishReason OnToken(const forward::Output& output, MonoTime now) override;
  void Deliver() override;
  uint32_t tokens_shown() const override;
  void OnDone(const absl::Status& status, FinishReason reason,
              const GenerationResult& result) override;

 private:
  void AddToDelta(const forward::Output& output, std::string text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountToken(MonoTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::GenerateResponse MakeFinished(FinishReason reason, const GenerationResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillTimings(v1::Timings* timings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  RouterMetrics& metrics_;
  const MonoTime received_at_;
  std::atomic<size_t> undelivered_{0};  // tokens

  mutable Mutex mutex_;
  EventWriter* writer_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<GenerationDriver> driver_ ABSL_GUARDED_BY(mutex_);
  bool client_gone_ ABSL_GUARDED_BY(mutex_) = false;
  rpc::Span span_ ABSL_GUARDED_BY(mutex_);

  // Of the request.
  std::optional<TextAssembler> assembler_ ABSL_GUARDED_BY(mutex_);
  std::string generation_id_ ABSL_GUARDED_BY(mutex_);
  uint32_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  MonoTime deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool return_token_ids_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t seed_ ABSL_GUARDED_BY(mutex_) = 0;

  // Of the answer so far.
  std::string stop_string_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> token_ids_ ABSL_GUARDED_BY(mutex_);
  std::vector<MonoTime> token_times_ ABSL_GUARDED_BY(mutex_);

  // What is still to be written, in this order.
  std::optional<v1::GenerateResponse> started_ ABSL_GUARDED_BY(mutex_);
  v1::Delta delta_ ABSL_GUARDED_BY(mutex_);
  size_t delta_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<v1::GenerateResponse> finished_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  size_t writing_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool write_runs_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_failed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvmesh::router

#include "services/router/grpc/generation_call.h"

#include <glog/logging.h>

#include <utility>

#include "common/base/limits.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::router {
namespace {

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kNone:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

absl::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kNone:
      break;
  }
  return "none";
}

void FillLogprob(const forward::TokenLogprob& logprob, v1::TokenLogprob* proto) {
  proto->set_token_id(logprob.token_id);
  proto->set_logprob(static_cast<float>(logprob.logprob));
  proto->set_piece(logprob.piece);
}

}  // namespace

GenerationCall::GenerationCall(EventWriter& writer, const Clock& clock, RouterMetrics& metrics)
    : clock_(clock), metrics_(metrics), received_at_(clock.Now()), writer_(&writer) {}

Trace GenerationCall::StartSpan(const Trace& parent, const GenerationSpec& spec) {
  MutexLock lock(&mutex_);
  // The session tells calls of one parent apart.
  uint64_t number = 0;
  for (const char byte : spec.session.bytes().substr(0, 8)) {
    number = number << 8 | static_cast<uint8_t>(byte);
  }
  span_ = rpc::Span("router", "generate", parent, number);
  span_.Set("session", spec.session.ToHex());
  span_.Set("tenant", spec.tenant->name);
  span_.Set("prompt_tokens", spec.prompt.size());
  return span_.trace();
}

void GenerationCall::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  const absl::string_view code = rpc::CodeName(rpc::ToGrpc(status).error_code());
  metrics_.CountGeneration(code);
  span_.End(code);
  started_.reset();
  status_ = status;
  WriteNext();
}

void GenerationCall::Begin(const PreparedRequest& request, const text::Tokenizer& tokenizer) {
  MutexLock lock(&mutex_);
  assembler_.emplace(tokenizer, request.text);
  generation_id_ = request.spec.session.ToHex();
  prompt_tokens_ = static_cast<uint32_t>(request.spec.prompt.size());
  deadline_ = request.spec.deadline;
  return_token_ids_ = request.return_token_ids;
  seed_ = request.spec.sampling.seed;
  v1::Started* started = started_.emplace().mutable_started();
  started->set_generation_id(generation_id_);
  started->set_prompt_tokens(prompt_tokens_);
}

void GenerationCall::Bind(std::shared_ptr<GenerationDriver> driver) {
  LOG(INFO) << "session " << driver->session().ToHex() << " entered";
  bool gone = false;
  {
    MutexLock lock(&mutex_);
    gone = client_gone_;
    if (writer_ != nullptr) driver_ = driver;
    metrics_.prompt_tokens.Increment(prompt_tokens_);
    WriteNext();
  }
  if (gone) driver->Cancel(absl::CancelledError("the client is gone"));
}

bool GenerationCall::wants_tokens() const {
  return undelivered_.load() < limits::kUndeliveredTokensMax;
}

FinishReason GenerationCall::OnToken(const forward::Output& output, MonoTime now) {
  MutexLock lock(&mutex_);
  TextAssembler::Step step = assembler_->Push(output);
  CountToken(now);
  AddToDelta(output, std::move(step.text));
  stop_string_ = std::move(step.stop_string);
  return step.reason;
}

void GenerationCall::Deliver() {
  MutexLock lock(&mutex_);
  if (delta_tokens_ > 0) WriteNext();
}

uint32_t GenerationCall::tokens_shown() const {
  MutexLock lock(&mutex_);
  return assembler_->tokens_shown();
}

void GenerationCall::CountToken(MonoTime now) {
  metrics_.output_tokens.Increment();
  if (token_times_.empty()) {
    metrics_.time_to_first_token.Observe(absl::ToDoubleSeconds(now - received_at_));
  } else {
    metrics_.time_per_output_token.Observe(absl::ToDoubleSeconds(now - token_times_.back()));
  }
  token_times_.push_back(now);
}

void GenerationCall::AddToDelta(const forward::Output& output, std::string text) {
  delta_.mutable_text()->append(text);
  if (output.token_id.has_value()) {
    delta_.add_token_ids(*output.token_id);
    if (return_token_ids_) token_ids_.push_back(*output.token_id);
  }
  if (output.logprobs.has_value()) {
    v1::Logprobs* logprobs = delta_.add_logprobs();
    FillLogprob(output.logprobs->chosen, logprobs->mutable_chosen());
    for (const forward::TokenLogprob& top : output.logprobs->top) {
      FillLogprob(top, logprobs->add_top());
    }
  }
  ++delta_tokens_;
  ++undelivered_;
}

void GenerationCall::OnDone(const absl::Status& status, FinishReason reason,
                            const GenerationResult& result) {
  MutexLock lock(&mutex_);
  const absl::string_view how =
      status.ok() ? Name(reason) : rpc::CodeName(rpc::ToGrpc(status).error_code());
  metrics_.CountGeneration(how);
  const GenerationStats& stats = result.stats;
  LOG(INFO) << "session " << generation_id_ << " ended: " << how << " " << status.message()
            << " prompt_tokens=" << prompt_tokens_ << " output_tokens=" << stats.tokens
            << " cached_tokens=" << result.reuse.cached_tokens
            << " outcome=" << OutcomeName(result.reuse.outcome) << " cause=" << result.reuse.cause
            << " reprefills=" << stats.reprefills << " repairs=" << stats.repairs
            << " cache_misses=" << stats.cache_misses << " replans=" << stats.replans
            << " link_retries=" << stats.link_retries << " refusals=" << stats.refusals;
  span_.Set("completion_tokens", stats.tokens);
  span_.Set("cached_tokens", result.reuse.cached_tokens);
  span_.Set("outcome", std::string(OutcomeName(result.reuse.outcome)));
  span_.Set("reprefills", stats.reprefills);
  span_.Set("repairs", stats.repairs);
  if (!token_times_.empty()) {
    span_.Set("ttft_ms", absl::ToDoubleMilliseconds(token_times_[0] - received_at_));
  }
  span_.End(rpc::CodeName(rpc::ToGrpc(status).error_code()));
  if (status.ok()) finished_ = MakeFinished(reason, result);
  status_ = status;
  WriteNext();
}

v1::GenerateResponse GenerationCall::MakeFinished(FinishReason reason,
                                                  const GenerationResult& result) {
  v1::GenerateResponse event;
  v1::Finished* finished = event.mutable_finished();
  finished->set_reason(ToProto(reason));
  finished->set_stop_string(stop_string_);
  finished->set_seed(seed_);
  v1::Usage* usage = finished->mutable_usage();
  // As it was run: on stored state it may have other tokens than the request.
  usage->set_prompt_tokens(static_cast<uint32_t>(result.effective_prompt.size()));
  usage->set_completion_tokens(result.stats.tokens);
  const Reuse& reuse = result.reuse;
  usage->set_cached_tokens(reuse.cached_tokens);
  for (const auto& [tier, tokens] : reuse.cached_by_tier) {
    (*usage->mutable_cached_by_tier())[tier] = tokens;
  }
  usage->set_drifted_tokens(reuse.drifted_tokens);
  usage->set_outcome(std::string(OutcomeName(reuse.outcome)));
  usage->set_cause(reuse.cause);
  usage->set_reprefills(result.stats.reprefills);
  usage->set_repairs(result.stats.repairs);
  if (result.finish_key.has_value()) {
    finished->set_finish_key(std::string(result.finish_key->bytes()));
  }
  if (return_token_ids_) {
    finished->mutable_token_ids()->Add(token_ids_.begin(), token_ids_.end());
    finished->mutable_effective_prompt_ids()->Add(result.effective_prompt.begin(),
                                                  result.effective_prompt.end());
  }
  FillTimings(finished->mutable_timings());
  return event;
}

void GenerationCall::FillTimings(v1::Timings* timings) {
  if (driver_ != nullptr) {
    timings->set_queued_ms(absl::ToDoubleMilliseconds(driver_->queued()));
  }
  if (token_times_.empty()) return;
  timings->set_ttft_ms(absl::ToDoubleMilliseconds(token_times_[0] - received_at_));
  MonoTime before = received_at_;
  for (const MonoTime at : token_times_) {
    timings->add_per_token_ms(absl::ToDoubleMilliseconds(at - before));
    before = at;
  }
  const double seconds = absl::ToDoubleSeconds(token_times_.back() - token_times_[0]);
  if (seconds > 0) {
    timings->set_tokens_per_second(static_cast<double>(token_times_.size() - 1) / seconds);
  }
}

void GenerationCall::WriteNext() {
  if (writer_ == nullptr || write_runs_) return;
  if (write_failed_) {
    if (status_.has_value()) std::exchange(writer_, nullptr)->End(*status_);
    return;
  }
  v1::GenerateResponse event;
  if (started_.has_value()) {
    event = *std::exchange(started_, std::nullopt);
  } else if (delta_tokens_ > 0) {
    event.mutable_delta()->Swap(&delta_);
    delta_.Clear();
    writing_tokens_ = std::exchange(delta_tokens_, 0);
  } else if (finished_.has_value()) {
    event = *std::exchange(finished_, std::nullopt);
  } else {
    if (status_.has_value()) std::exchange(writer_, nullptr)->End(*status_);
    return;
  }
  write_runs_ = true;
  writer_->Write(std::move(event));
}

void GenerationCall::OnWriteDone(bool ok) {
  std::shared_ptr<GenerationDriver> poke;
  {
    MutexLock lock(&mutex_);
    write_runs_ = false;
    if (!ok) write_failed_ = true;
    const bool was_full = !wants_tokens();
    undelivered_ -= std::exchange(writing_tokens_, 0);
    if (was_full && wants_tokens()) poke = driver_;
    WriteNext();
  }
  if (poke != nullptr) poke->Poke();
}

void GenerationCall::OnClientGone() {
  std::shared_ptr<GenerationDriver> driver;
  bool late = false;
  {
    MutexLock lock(&mutex_);
    client_gone_ = true;
    driver = driver_;
    late = clock_.Now() >= deadline_;
  }
  if (driver == nullptr) return;
  driver->Cancel(late ? absl::DeadlineExceededError("the deadline has passed")
                      : absl::CancelledError("cancelled by the client"));
}

bool GenerationCall::client_gone() {
  MutexLock lock(&mutex_);
  return client_gone_;
}

void GenerationCall::Detach() {
  std::shared_ptr<GenerationDriver> driver;  // let go of without the lock
  MutexLock lock(&mutex_);
  writer_ = nullptr;
  driver.swap(driver_);
}

}  // namespace kvmesh::router

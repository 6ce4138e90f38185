// One piece of work for the compute thread, complete in itself: it owns the session's state while
// it runs, so that nothing which happens to the session meanwhile can pull the state away from
// under the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/forward/frames.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/engine.h"
#include "services/shard/core/layer_state.h"

namespace kvmesh::shard {

// What a shard needs to know of the tokenizer. Immutable, thread-safe.
class Vocabulary {
 public:
  virtual ~Vocabulary() = default;
  // Raw bytes of a token; empty for an id without one.
  virtual std::string Piece(uint32_t id) const = 0;
  // What a token contributes to the text that names stored state (DESIGN §5.1, bytes(id)).
  virtual std::string KeyBytes(uint32_t id) const = 0;
  virtual bool IsEndOfSequence(uint32_t id) const = 0;
};

struct Job {
  StreamId stream{0};
  absl::Duration waited;  // since the frame came
  forward::Compute frame;
  bool stateful = false;
  bool fresh = false;     // `state` is empty: make a new one
  SessionState state;     // of a stateful job that is not fresh
  bool from_row = false;  // a full hit at the tail: no layer runs, `stored_row` gives the logits
  std::vector<float> stored_row;
  bool sample = false;  // the tail answers with a token
  std::shared_ptr<const forward::SamplingOptions>
      sampling;                   // shared with the stream, which may end first
  std::vector<uint32_t> history;  // covers the frame's rows; the stream's own, on loan
  uint32_t prompt_tokens = 0;
  std::shared_ptr<std::atomic<bool>>
      cancel;  // shared: the hop sets it while the engine looks at it
};

struct JobResult {
  // OK; Cancelled, ResourceExhausted, Internal from the engine (the state is gone);
  // Internal "nan_logits", "inf_logits" or "no_candidates" from the sampler.
  absl::Status status;
  SessionState state;  // as it is after the rows; empty after an engine's failure
  uint64_t state_bytes = 0;
  // [rows, hidden_size] after the range's last layer; of the runner, until its next Run.
  absl::Span<const float> rows;
  std::optional<forward::Output> output;  // of a job that samples
  // Given back from the job.
  forward::Compute frame;
  std::vector<uint32_t> history;
};

// Runs jobs on one engine, one at a time, and keeps the memory that they need: a step allocates
// nothing of the size of a row or of the vocabulary. Not thread-safe.
class JobRunner {
 public:
  // Both outlive the runner.
  JobRunner(Engine& engine, const Vocabulary& vocabulary)
      : engine_(engine), vocabulary_(vocabulary) {}

  // Runs `job` to its end (or until its cancel flag is seen). Takes everything out of `job`.
  JobResult Run(Job& job);

 private:
  absl::StatusOr<absl::Span<const float>> RunLayers(Job& job, JobResult* result);

  Engine& engine_;
  const Vocabulary& vocabulary_;
  StepItem item_;
  std::vector<float> hidden_;  // [rows, hidden_size] of the frame
  std::vector<float> logits_;  // of a stored row
};

}  // namespace kvmesh::shard

// Causal grouped-query attention of rows of any sessions over their blocks of keys and values, on
// all threads. A row's softmax is taken over chunks of kAttentionChunk keys at absolute positions
// and folded in their order, whether one task or several work on it: the bits do not depend on the
// batch, on how a prefill is cut, or on threads. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels/step_kernels.h"
#include "services/shard/engine/key_value_state.h"
#include "services/shard/engine/layer_backend.h"

namespace kvmesh::shard {

class BlockAttention {
 public:
  // `heads` is a multiple of layout.kv_heads. `pool` and `kernels` must outlive this.
  BlockAttention(ComputePool& pool, const StepKernels& kernels, const KeyValueLayout& layout,
                 size_t heads);

  // out = softmax(query keys^T / sqrt(head_dim)) values: row i attends positions 0 to
  // rows[i].position of its state. Rows of one state are consecutive, at consecutive positions.
  // query, out: [rows, heads, head_dim]. Allocates only where there is more to do than ever before.
  void Run(absl::Span<const LayerRow> rows, const float* query, float* out);

 private:
  static constexpr size_t kNoSlot = std::numeric_limits<size_t>::max();

  // Query heads that share a key head, as many as one pass over its keys and values can take.
  struct Part {
    size_t kv_head;
    size_t first_head;
    size_t heads;
  };
  // Neighbouring rows of one session and neighbouring parts. Of a part the queries are [rows,
  // heads], at most kAttentionQueriesMax.
  struct Task {
    size_t first_row;
    size_t rows;
    size_t first_part;
    size_t parts;  // 1 unless there is a slot
    size_t chunk;  // the only one, if there is a slot; else all are folded
    size_t slot;   // of slots_, of the first part's first chunk; kNoSlot: straight to the output
  };
  // The results of all chunks of one part of a row, from `slot` on.
  struct Join {
    size_t row;
    size_t part;
    size_t slot;
    size_t chunks;
  };
  // What the heads of a scratch were begun for: the chunks of a row share it.
  struct Begun {
    uint64_t run = 0;
    size_t first_row = 0;
    size_t rows = 0;
    size_t first_part = 0;
    size_t parts = 0;
    bool operator==(const Begun&) const = default;
  };
  // What one thread needs.
  struct Scratch {
    Begun begun;
    std::vector<AttentionHead> heads;  // [parts]
    std::vector<float> queries;        // [parts, head_dim, kAttentionQueriesMax]
    std::vector<float> scores;         // [parts, kAttentionQueriesMax, kAttentionChunk]
    std::vector<float> slot;           // [slot_floats()]
    std::vector<float> folded;         // [kAttentionQueriesMax, ValueStride(head_dim)]
  };
  // The softmax of each query of a task over all chunks so far.
  struct Folds {
    size_t count;
    AttentionFold of[kAttentionQueriesMax];
  };

  size_t head_dim() const { return layout_.head_dim; }
  // A slot: the highest score of each query, the sum of each, the values of each.
  size_t slot_floats() const { return kAttentionQueriesMax * (2 + ValueStride(head_dim())); }
  float* slot(size_t index) { return slots_.data() + index * slot_floats(); }

  void Plan(absl::Span<const LayerRow> rows);
  void PlanByChunks(size_t row, uint64_t tokens);
  void PlanByRows(size_t first_row, size_t rows, size_t part);
  void RunTask(const Task& task, absl::Span<const LayerRow> rows, const float* query, float* out,
               Scratch& scratch);
  void RunJoin(const Join& join, float* out, Scratch& scratch);
  void PackQueries(const Task& task, const Part& part, const float* query, float* packed) const;
  // Fills scratch.heads with the queries, and what does not change from chunk to chunk.
  void BeginHeads(const Task& task, const float* query, Scratch& scratch) const;
  void Attend(const Task& task, absl::Span<const LayerRow> rows, size_t chunk, Scratch& scratch);
  void PointTo(float* slot, AttentionHead& head) const;
  Folds BeginFolds(size_t count, Scratch& scratch) const;
  void Take(const float* slot, const size_t* tokens, Folds& folds) const;
  void Finish(size_t first_row, const Part& part, const Folds& folds, float* out) const;

  ComputePool& pool_;
  const StepKernels& kernels_;
  const KeyValueLayout layout_;
  const size_t heads_;
  const size_t group_;  // query heads of a key head
  std::vector<Part> parts_;
  std::vector<Scratch> scratch_;  // [threads]
  std::vector<Task> tasks_;
  std::vector<Join> joins_;
  std::vector<float> slots_;
  size_t slots_used_ = 0;
  uint64_t run_ = 0;  // counts
};

}  // namespace kvmesh::shard

// Causal grouped-query attention of rows of any sessions over their blocks of keys and values, on
// all threads. A row's softmax is taken over chunks of kAttentionChunk keys at absolute positions
// and folded in their order, whether one task or several work on it: the bits do not depend on the
// batch, on how a prefill is cut, or on threads. Not thread-safe.
#pragma once

#include <cstddef>
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

  // Neighbouring rows of one session, and some query heads that share a key head: their queries
  // are [rows, heads], at most kAttentionQueriesMax.
  struct Task {
    size_t first_row;
    size_t rows;
    size_t first_head;
    size_t heads;
    size_t chunk;  // the only one, if there is a slot; else all are folded
    size_t slot;   // of slots_, where the chunk's result goes; kNoSlot: straight to the output
  };
  // Results of single chunks of the same queries: those of a run of tasks.
  struct Join {
    size_t first_task;
    size_t chunks;
  };
  // What one thread needs.
  struct Scratch {
    std::vector<float> queries;  // [head_dim, queries]
    std::vector<float> scores;   // [queries, kAttentionChunk]
    std::vector<float> slot;     // [slot_floats()]
    std::vector<float> folded;   // [queries, ValueStride(head_dim)]
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
  void PlanByChunks(size_t row, size_t chunks, size_t first_head, size_t heads, size_t* slots);
  void PlanByRows(size_t first_row, size_t rows, size_t first_head, size_t heads);
  void RunTask(const Task& task, absl::Span<const LayerRow> rows, const float* query, float* out,
               Scratch& scratch);
  void RunJoin(const Join& join, float* out, Scratch& scratch);
  void PackQueries(const Task& task, const float* query, float* packed) const;
  AttentionChunk ChunkOf(const Task& task, absl::Span<const LayerRow> rows, size_t chunk,
                         Scratch& scratch, float* slot) const;
  Folds BeginFolds(size_t count, Scratch& scratch) const;
  void Take(const float* slot, const size_t* tokens, Folds& folds) const;
  void Finish(const Task& task, const Folds& folds, float* out) const;

  ComputePool& pool_;
  const StepKernels& kernels_;
  const KeyValueLayout layout_;
  const size_t heads_;
  const size_t group_;            // query heads of a key head
  const size_t part_heads_;       // of them in one task
  std::vector<Scratch> scratch_;  // [threads]
  std::vector<Task> tasks_;
  std::vector<Join> joins_;
  std::vector<float> slots_;
};

}  // namespace kvmesh::shard

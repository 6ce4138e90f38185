#include "services/shard/engine/block_attention.h"

#include <algorithm>
#include <cmath>

namespace kvmesh::shard {
namespace {

// One row with fewer scores than this is not worth waking threads for.
constexpr size_t kSharedScoresMin = 1024;
// Likewise the joining of fewer results.
constexpr size_t kSharedJoinsMin = 16;

size_t PartHeads(size_t group) {
  const size_t parts = (group + kAttentionQueriesMax - 1) / kAttentionQueriesMax;
  return (group + parts - 1) / parts;
}

size_t ChunksUpTo(uint64_t position) {
  return position / kAttentionChunk + 1;
}

}  // namespace

BlockAttention::BlockAttention(ComputePool& pool, const StepKernels& kernels,
                               const KeyValueLayout& layout, size_t heads)
    : pool_(pool),
      kernels_(kernels),
      layout_(layout),
      heads_(heads),
      group_(heads / layout.kv_heads),
      part_heads_(PartHeads(group_)),
      scratch_(pool.threads()) {
  for (Scratch& scratch : scratch_) {
    scratch.queries.resize(kAttentionQueriesMax * head_dim());
    scratch.scores.resize(kAttentionQueriesMax * kAttentionChunk);
    scratch.slot.resize(slot_floats());
    scratch.folded.resize(kAttentionQueriesMax * ValueStride(head_dim()));
  }
}

void BlockAttention::Run(absl::Span<const LayerRow> rows, const float* query, float* out) {
  Plan(rows);
  if (rows.size() == 1 && (rows[0].position + 1) * heads_ < kSharedScoresMin) {
    for (const Task& task : tasks_) RunTask(task, rows, query, out, scratch_[0]);
  } else {
    pool_.Run(tasks_.size(), [&](size_t i, uint32_t worker) {
      RunTask(tasks_[i], rows, query, out, scratch_[worker]);
    });
  }
  if (joins_.size() < kSharedJoinsMin) {
    for (const Join& join : joins_) RunJoin(join, out, scratch_[0]);
  } else {
    pool_.Run(joins_.size(),
              [&](size_t i, uint32_t worker) { RunJoin(joins_[i], out, scratch_[worker]); });
  }
}

// A single row is shared out by chunks. More rows are enough tasks without, and share loads of keys
// and values.
void BlockAttention::Plan(absl::Span<const LayerRow> rows) {
  tasks_.clear();
  joins_.clear();
  size_t slots = 0;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].state == rows[begin].state) ++end;
    const size_t chunks = ChunksUpTo(rows[begin].position);
    for (size_t head = 0; head < heads_; head += group_) {
      for (size_t part = 0; part < group_; part += part_heads_) {
        const size_t heads = std::min(part_heads_, group_ - part);
        if (end - begin == 1 && chunks > 1) {
          PlanByChunks(begin, chunks, head + part, heads, &slots);
        } else {
          PlanByRows(begin, end - begin, head + part, heads);
        }
      }
    }
  }
  slots_.resize(std::max(slots_.size(), slots * slot_floats()));
}

void BlockAttention::PlanByChunks(size_t row, size_t chunks, size_t first_head, size_t heads,
                                  size_t* slots) {
  joins_.push_back({.first_task = tasks_.size(), .chunks = chunks});
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    tasks_.push_back({.first_row = row,
                      .rows = 1,
                      .first_head = first_head,
                      .heads = heads,
                      .chunk = chunk,
                      .slot = (*slots)++});
  }
}

void BlockAttention::PlanByRows(size_t first_row, size_t rows, size_t first_head, size_t heads) {
  const size_t task_rows = kAttentionQueriesMax / heads;
  for (size_t row = 0; row < rows; row += task_rows) {
    tasks_.push_back({.first_row = first_row + row,
                      .rows = std::min(task_rows, rows - row),
                      .first_head = first_head,
                      .heads = heads,
                      .chunk = 0,
                      .slot = kNoSlot});
  }
}

void BlockAttention::RunTask(const Task& task, absl::Span<const LayerRow> rows, const float* query,
                             float* out, Scratch& scratch) {
  const auto attend = kernels_.attend[static_cast<size_t>(layout_.dtype)];
  PackQueries(task, query, scratch.queries.data());
  if (task.slot != kNoSlot) {
    attend(ChunkOf(task, rows, task.chunk, scratch, slot(task.slot)));
    return;
  }
  Folds folds = BeginFolds(task.rows * task.heads, scratch);
  const size_t chunks = ChunksUpTo(rows[task.first_row + task.rows - 1].position);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const AttentionChunk attention = ChunkOf(task, rows, chunk, scratch, scratch.slot.data());
    attend(attention);
    Take(scratch.slot.data(), attention.tokens, folds);
  }
  Finish(task, folds, out);
}

// What RunTask does when it folds, from the results of one task for each chunk.
void BlockAttention::RunJoin(const Join& join, float* out, Scratch& scratch) {
  const Task& first = tasks_[join.first_task];
  Folds folds = BeginFolds(first.heads, scratch);
  size_t tokens[kAttentionQueriesMax];
  std::fill_n(tokens, kAttentionQueriesMax, 1);  // the row has some in every chunk
  for (size_t chunk = 0; chunk < join.chunks; ++chunk) {
    Take(slot(first.slot + chunk), tokens, folds);
  }
  Finish(first, folds, out);
}

void BlockAttention::PackQueries(const Task& task, const float* query, float* packed) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim()));
  const size_t queries = task.rows * task.heads;
  for (size_t row = 0; row < task.rows; ++row) {
    for (size_t head = 0; head < task.heads; ++head) {
      const size_t index = (task.first_row + row) * heads_ + task.first_head + head;
      const float* from = query + index * head_dim();
      float* to = packed + row * task.heads + head;
      for (size_t i = 0; i < head_dim(); ++i) to[i * queries] = from[i] * scale;
    }
  }
}

AttentionChunk BlockAttention::ChunkOf(const Task& task, absl::Span<const LayerRow> rows,
                                       size_t chunk, Scratch& scratch, float* slot) const {
  const size_t kv_head = task.first_head / group_;
  AttentionChunk attention{
      .blocks = rows[task.first_row].state->blocks() + chunk * kAttentionChunkBlocks,
      .key_offset = layout_.key_offset(kv_head),
      .value_offset = layout_.value_offset(kv_head),
      .head_dim = head_dim(),
      .queries = task.rows * task.heads,
      .packed_queries = scratch.queries.data(),
      .scores = scratch.scores.data(),
      .highest = slot,
      .sums = slot + kAttentionQueriesMax,
      .values = slot + 2 * kAttentionQueriesMax};
  const size_t before = chunk * kAttentionChunk;
  for (size_t i = 0; i < attention.queries; ++i) {
    const size_t attended = rows[task.first_row + i / task.heads].position + 1;
    attention.tokens[i] = attended > before ? std::min(attended - before, kAttentionChunk) : 0;
  }
  return attention;
}

BlockAttention::Folds BlockAttention::BeginFolds(size_t count, Scratch& scratch) const {
  const size_t stride = ValueStride(head_dim());
  std::fill_n(scratch.folded.data(), count * stride, 0.0f);
  Folds folds{.count = count, .of = {}};
  for (size_t i = 0; i < count; ++i) {
    folds.of[i] = {.highest = -std::numeric_limits<float>::infinity(),
                   .sum = 0,
                   .values = scratch.folded.data() + i * stride};
  }
  return folds;
}

void BlockAttention::Take(const float* slot, const size_t* tokens, Folds& folds) const {
  const float* highest = slot;
  const float* sums = slot + kAttentionQueriesMax;
  const float* values = slot + 2 * kAttentionQueriesMax;
  for (size_t i = 0; i < folds.count; ++i) {
    if (tokens[i] == 0) continue;
    kernels_.fold(highest[i], sums[i], values + i * ValueStride(head_dim()), head_dim(),
                  &folds.of[i]);
  }
}

void BlockAttention::Finish(const Task& task, const Folds& folds, float* out) const {
  for (size_t i = 0; i < folds.count; ++i) {
    const size_t row = task.first_row + i / task.heads;
    const size_t head = task.first_head + i % task.heads;
    kernels_.finish(folds.of[i], head_dim(), out + (row * heads_ + head) * head_dim());
  }
}

}  // namespace kvmesh::shard

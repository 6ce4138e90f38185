#include "services/shard/engine/block_attention.h"

#include <algorithm>
#include <cmath>

namespace kvmesh::shard {
namespace {

// One row with fewer scores than this is not worth waking threads for.
constexpr size_t kSharedScoresMin = 1024;
// Likewise the joining of fewer results of chunks.
constexpr size_t kSharedJoinsMin = 64;
// A chunk with so many tokens counts as a whole one when chunks are shared out.
constexpr size_t kWholeChunkMin = kAttentionChunk * 3 / 4;

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
      scratch_(pool.threads()) {
  const size_t part_heads = PartHeads(group_);
  for (size_t kv_head = 0; kv_head < layout_.kv_heads; ++kv_head) {
    for (size_t head = 0; head < group_; head += part_heads) {
      parts_.push_back({.kv_head = kv_head,
                        .first_head = kv_head * group_ + head,
                        .heads = std::min(part_heads, group_ - head)});
    }
  }
  for (Scratch& scratch : scratch_) {
    scratch.heads.resize(parts_.size());
    scratch.queries.resize(parts_.size() * kAttentionQueriesMax * head_dim());
    scratch.scores.resize(parts_.size() * kAttentionQueriesMax * kAttentionChunk);
    scratch.slot.resize(slot_floats());
    scratch.folded.resize(kAttentionQueriesMax * ValueStride(head_dim()));
  }
}

void BlockAttention::Run(absl::Span<const LayerRow> rows, const float* query, float* out) {
  ++run_;
  Plan(rows);
  if (rows.size() == 1 && (rows[0].position + 1) * heads_ < kSharedScoresMin) {
    for (const Task& task : tasks_) RunTask(task, rows, query, out, scratch_[0]);
  } else {
    pool_.Run(tasks_.size(), [&](size_t i, uint32_t worker) {
      RunTask(tasks_[i], rows, query, out, scratch_[worker]);
    });
  }
  if (slots_used_ < kSharedJoinsMin) {
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
  slots_used_ = 0;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && rows[end].state == rows[begin].state) ++end;
    if (end - begin == 1) {
      PlanByChunks(begin, rows[begin].position + 1);
      continue;
    }
    for (size_t part = 0; part < parts_.size(); ++part) PlanByRows(begin, end - begin, part);
  }
  slots_.resize(std::max(slots_.size(), slots_used_ * slot_floats()));
}

// All heads of a chunk in one task read memory in long runs. The chunks that do not come out even
// among the threads are cut by heads, and come last.
void BlockAttention::PlanByChunks(size_t row, uint64_t tokens) {
  const size_t chunks = ChunksUpTo(tokens - 1);
  const size_t whole = (tokens + kAttentionChunk - kWholeChunkMin) / kAttentionChunk;
  const size_t uncut = whole / pool_.threads() * pool_.threads();
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t pieces = chunk < uncut ? 1 : std::min<size_t>(pool_.threads(), parts_.size());
    for (size_t piece = 0; piece < pieces; ++piece) {
      const size_t begin = parts_.size() * piece / pieces;
      const size_t end = parts_.size() * (piece + 1) / pieces;
      tasks_.push_back({.first_row = row,
                        .rows = 1,
                        .first_part = begin,
                        .parts = end - begin,
                        .chunk = chunk,
                        .slot = slots_used_ + begin * chunks});
    }
  }
  for (size_t part = 0; part < parts_.size(); ++part, slots_used_ += chunks) {
    joins_.push_back({.row = row, .part = part, .slot = slots_used_, .chunks = chunks});
  }
}

void BlockAttention::PlanByRows(size_t first_row, size_t rows, size_t part) {
  const size_t task_rows = kAttentionQueriesMax / parts_[part].heads;
  for (size_t row = 0; row < rows; row += task_rows) {
    tasks_.push_back({.first_row = first_row + row,
                      .rows = std::min(task_rows, rows - row),
                      .first_part = part,
                      .parts = 1,
                      .chunk = 0,
                      .slot = kNoSlot});
  }
}

void BlockAttention::RunTask(const Task& task, absl::Span<const LayerRow> rows, const float* query,
                             float* out, Scratch& scratch) {
  const Begun begun{.run = run_,
                    .first_row = task.first_row,
                    .rows = task.rows,
                    .first_part = task.first_part,
                    .parts = task.parts};
  if (scratch.begun != begun) {
    BeginHeads(task, query, scratch);
    scratch.begun = begun;
  }
  const size_t chunks = ChunksUpTo(rows[task.first_row + task.rows - 1].position);
  if (task.slot != kNoSlot) {
    for (size_t i = 0; i < task.parts; ++i) {
      PointTo(slot(task.slot + i * chunks + task.chunk), scratch.heads[i]);
    }
    Attend(task, rows, task.chunk, scratch);
    return;
  }
  AttentionHead& head = scratch.heads[0];
  PointTo(scratch.slot.data(), head);
  Folds folds = BeginFolds(head.queries, scratch);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    Attend(task, rows, chunk, scratch);
    Take(scratch.slot.data(), head.tokens, folds);
  }
  Finish(task.first_row, parts_[task.first_part], folds, out);
}

// What RunTask does when it folds, from the results of one task for each chunk.
void BlockAttention::RunJoin(const Join& join, float* out, Scratch& scratch) {
  Folds folds = BeginFolds(parts_[join.part].heads, scratch);
  size_t tokens[kAttentionQueriesMax];
  std::fill_n(tokens, kAttentionQueriesMax, 1);  // the row has some in every chunk
  for (size_t chunk = 0; chunk < join.chunks; ++chunk) {
    Take(slot(join.slot + chunk), tokens, folds);
  }
  Finish(join.row, parts_[join.part], folds, out);
}

void BlockAttention::PackQueries(const Task& task, const Part& part, const float* query,
                                 float* packed) const {
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim()));
  const size_t queries = task.rows * part.heads;
  for (size_t row = 0; row < task.rows; ++row) {
    for (size_t head = 0; head < part.heads; ++head) {
      const size_t index = (task.first_row + row) * heads_ + part.first_head + head;
      const float* from = query + index * head_dim();
      float* to = packed + row * part.heads + head;
      for (size_t i = 0; i < head_dim(); ++i) to[i * queries] = from[i] * scale;
    }
  }
}

void BlockAttention::BeginHeads(const Task& task, const float* query, Scratch& scratch) const {
  for (size_t i = 0; i < task.parts; ++i) {
    const Part& part = parts_[task.first_part + i];
    float* packed = scratch.queries.data() + i * kAttentionQueriesMax * head_dim();
    PackQueries(task, part, query, packed);
    scratch.heads[i] = {
        .key_offset = layout_.key_offset(part.kv_head),
        .value_offset = layout_.value_offset(part.kv_head),
        .queries = task.rows * part.heads,
        .packed_queries = packed,
        .scores = scratch.scores.data() + i * kAttentionQueriesMax * kAttentionChunk};
  }
}

void BlockAttention::PointTo(float* slot, AttentionHead& head) const {
  head.highest = slot;
  head.sums = slot + kAttentionQueriesMax;
  head.values = slot + 2 * kAttentionQueriesMax;
}

void BlockAttention::Attend(const Task& task, absl::Span<const LayerRow> rows, size_t chunk,
                            Scratch& scratch) {
  const size_t before = chunk * kAttentionChunk;
  for (size_t i = 0; i < task.parts; ++i) {
    AttentionHead& head = scratch.heads[i];
    const size_t heads = parts_[task.first_part + i].heads;
    for (size_t j = 0; j < head.queries; ++j) {
      const size_t attended = rows[task.first_row + j / heads].position + 1;
      head.tokens[j] = attended > before ? std::min(attended - before, kAttentionChunk) : 0;
    }
  }
  // Runs of chunks are the rule, so that the next chunk is a good guess at what the thread reads
  // next; behind the last one it is what was read already.
  const uint8_t* const* blocks = rows[task.first_row].state->blocks();
  const bool is_last = (chunk + 1) * kAttentionChunk > rows[task.first_row].position;
  const size_t next_chunk = is_last ? chunk : chunk + 1;
  kernels_.attend[static_cast<size_t>(layout_.dtype)](
      {.blocks = blocks + chunk * kAttentionChunkBlocks,
       .head_dim = head_dim(),
       .heads = scratch.heads.data(),
       .head_count = task.parts,
       .next = blocks[next_chunk * kAttentionChunkBlocks] + scratch.heads[0].key_offset});
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

void BlockAttention::Finish(size_t first_row, const Part& part, const Folds& folds,
                            float* out) const {
  for (size_t i = 0; i < folds.count; ++i) {
    const size_t row = first_row + i / part.heads;
    const size_t head = part.first_head + i % part.heads;
    kernels_.finish(folds.of[i], head_dim(), out + (row * heads_ + head) * head_dim());
  }
}

}  // namespace kvmesh::shard

#include "services/shard/engine/activations.h"

#include <algorithm>

namespace kvmesh::shard {
namespace {

// x[0..7] + x[8..15], of 32 with x[16..23] + x[24..31] added, then pairwise; always in this order.
float GroupSum(const float* x, size_t count) {
  float sums[8];
  for (size_t i = 0; i < 8; ++i) sums[i] = x[i] + x[i + 8];
  if (count == 32) {
    for (size_t i = 0; i < 8; ++i) sums[i] += x[i + 16] + x[i + 24];
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Null where this form does without the buffer.
template <typename Number>
const Number* At(const AlignedBuffer<Number>& buffer, size_t offset) {
  return buffer.data() == nullptr ? nullptr : buffer.data() + offset;
}

}  // namespace

Activations::Form Activations::FormFor(const PanelLayout& layout, bool rounds) {
  Form form;
  form.rounded = rounds && layout.quantised();
  form.sums = layout.has_min;
  if (form.rounded || form.sums) form.group = layout.group;
  if (form.rounded) form.chunk = layout.chunk();
  return form;
}

size_t Activations::IndexOf(const Form& form) {
  if (!form.rounded) return !form.sums ? 0 : form.group == 16 ? 1 : 2;
  const size_t chunk = form.chunk == 4 ? 0 : form.chunk == 8 ? 1 : 2;
  return 3 + 2 * chunk + (form.group == 16 ? 0 : 1);
}

void Activations::Set(const float* x, size_t rows, size_t columns, size_t tiles, size_t height) {
  source_ = x;
  rows_ = rows;
  columns_ = columns;
  tiles_ = tiles;
  height_ = height;
  x_ready_ = std::max(rows, height) == 1;
  for (Prepared& prepared : prepared_) prepared.ready = false;
}

void Activations::Prepare(ComputePool& pool, const StepKernels& kernels, const Form& form) {
  Prepared& prepared = prepared_[IndexOf(form)];
  if (prepared.ready) return;
  const size_t rows = std::max(rows_, tiles_ * height_);
  if (rows > rows_) zeros_.resize(std::max(zeros_.size(), columns_));
  if (form.group > 0) prepared.sums.Room(rows * (columns_ / form.group));
  if (form.rounded) {
    prepared.pairs.Room(rows * (columns_ / 2));
    prepared.scales.Room(rows * (columns_ / form.group));
    prepared.code_sums.Room(rows * (columns_ / form.group));
  } else if (!x_ready_) {
    x_.Room(rows * columns_);
  }
  if (tiles_ == 1) {
    FillTile(kernels, form, 0);
  } else {
    pool.Run(tiles_, [&](size_t index, uint32_t worker) { FillTile(kernels, form, index); });
  }
  prepared.ready = true;
  if (!form.rounded) x_ready_ = true;
}

Activations::Tile Activations::tile(const Form& form, size_t index) const {
  const Prepared& prepared = prepared_[IndexOf(form)];
  const size_t larger = rows_ % tiles_;  // tiles with one row more
  const size_t first = index * (rows_ / tiles_) + std::min(index, larger);
  const size_t rows = rows_ / tiles_ + (index < larger ? 1 : 0);
  const size_t place = height_ == 0 ? first : index * height_;
  const size_t groups = form.group == 0 ? 0 : columns_ / form.group;
  return {.x = std::max(rows_, height_) == 1 ? source_ : At(x_, place * columns_),
          .sums = At(prepared.sums, place * groups),
          .pairs = At(prepared.pairs, place * (columns_ / 2)),
          .scales = At(prepared.scales, place * groups),
          .code_sums = At(prepared.code_sums, place * groups),
          .first_row = first,
          .first_place = place,
          .rows = rows,
          .height = std::max(rows, height_)};
}

void Activations::FillTile(const StepKernels& kernels, const Form& form, size_t index) {
  const Tile to = tile(form, index);
  for (size_t row = 0; row < to.height; ++row) FillRow(kernels, form, to, row);
}

void Activations::FillRow(const StepKernels& kernels, const Form& form, const Tile& tile,
                          size_t row) {
  const bool is_there = row < tile.rows;  // or fills up
  const float* from = is_there ? source_ + (tile.first_row + row) * columns_ : nullptr;
  if (!form.rounded && !x_ready_) {
    float* x = x_.data() + tile.first_place * columns_ + row;
    for (size_t i = 0; i < columns_; ++i) x[i * tile.height] = is_there ? from[i] : 0.0f;
  }
  if (form.group == 0) return;
  Prepared& prepared = prepared_[IndexOf(form)];
  const size_t groups = columns_ / form.group;
  if (form.rounded) {
    const size_t at = tile.first_place * groups + row;
    const RoundedRow to{.group = form.group,
                        .chunk = form.chunk,
                        .height = tile.height,
                        .pairs = prepared.pairs.data() + tile.first_place * (columns_ / 2) + row,
                        .scales = prepared.scales.data() + at,
                        .code_sums = prepared.code_sums.data() + at,
                        .sums = prepared.sums.data() + at};
    kernels.round_row(is_there ? from : zeros_.data(), columns_, to);
    return;
  }
  for (size_t group = 0; group < groups; ++group) {
    const float* x = is_there ? from + group * form.group : zeros_.data();
    prepared.sums.data()[tile.first_place * groups + group * tile.height + row] =
        GroupSum(x, form.group);
  }
}

}  // namespace kvmesh::shard

// Rows of activations as products read them: in tiles, the rows of a tile innermost. What is
// computed for a row depends on that row alone. One thread fills it; then any number read it.
//
// Rounded activations. A group of 16 or 32 neighbouring features, as large as the weights' group,
// shares a scale: the power of two that makes the largest magnitude at least 2^14 and below 2^15.
// Each number divided by the scale is rounded to the nearest whole number, ties to even, and kept
// within
// +-32767: off by half a scale at most, by one scale where it is cut. A group with NaN or an
// infinity has the scale NaN, and one of less than 2^-112 the scale 2^-126.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels/aligned_buffer.h"
#include "services/shard/engine/kernels/panel_layout.h"
#include "services/shard/engine/kernels/step_kernels.h"

namespace kvmesh::shard {

class Activations {
 public:
  // What a weight type asks of the activations that it meets.
  struct Form {
    bool rounded = false;  // or f32
    bool sums = false;     // over groups
    size_t group = 0;      // of sums and scales: 16 or 32
    size_t chunk = 0;      // rounded: codes of a word of weights, PanelLayout::chunk
  };
  static Form FormFor(const PanelLayout& layout, bool rounds);

  struct Tile {
    const float* x;            // [columns, height]; f32
    const float* sums;         // [columns / group, height]; if asked for; of the rounded numbers
    const int32_t* pairs;      // [columns / 2, height]; rounded: of every chunk, words of the first
                               // half with the feature half a chunk later in their upper 16 bits
    const float* scales;       // [columns / group, height]; rounded
    const int32_t* code_sums;  // [columns / group, height]; rounded
    size_t first_row;
    size_t first_place;  // the rows of all tiles before, as they lie in the buffers
    size_t rows;
    size_t height;
  };

  // x: [rows, columns], in use until the next call. `tiles`: at least 1, to which rows are shared
  // out evenly. `height`: 0, as many as a tile has rows; else that, filled up with zeros.
  void Set(const float* x, size_t rows, size_t columns, size_t tiles, size_t height);
  // Makes `form` of them. `columns` is a multiple of its group.
  void Prepare(ComputePool& pool, const StepKernels& kernels, const Form& form);

  size_t tiles() const { return tiles_; }
  // Of a form that was prepared.
  Tile tile(const Form& form, size_t index) const;

 private:
  // The buffers of one form; f32 without and with sums over 16 and 32, rounded by chunk and group.
  struct Prepared {
    bool ready = false;
    AlignedBuffer<float> sums;
    AlignedBuffer<int32_t> pairs;
    AlignedBuffer<float> scales;
    AlignedBuffer<int32_t> code_sums;
  };
  static size_t IndexOf(const Form& form);
  void FillTile(const StepKernels& kernels, const Form& form, size_t index);
  void FillRow(const StepKernels& kernels, const Form& form, const Tile& tile, size_t row);

  const float* source_ = nullptr;
  size_t rows_ = 0;
  size_t columns_ = 0;
  size_t tiles_ = 1;
  size_t height_ = 0;
  bool x_ready_ = false;
  AlignedBuffer<float> x_;
  std::vector<float> zeros_;  // a row that fills up a tile
  std::array<Prepared, 9> prepared_;
};

}  // namespace kvmesh::shard

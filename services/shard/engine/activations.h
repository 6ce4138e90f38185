// Rows of activations as products read them: in tiles, the rows of a tile innermost, with the sums
// over groups of features that weight types with minima ask for. What is computed for a row depends
// on that row alone. One thread fills it; then any number read it.
#pragma once

#include <cstddef>

#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/kernels/aligned_buffer.h"

namespace kvmesh::shard {

class Activations {
 public:
  struct Layout {
    size_t tiles;    // at least 1
    size_t heights;  // 0: as many as a tile has rows; else that, filled up with zeros
    bool sums16;     // whether sums over groups of 16, or of 32, are wanted
    bool sums32;
  };
  struct Tile {
    const float* x;       // [columns, height]
    const float* sums16;  // [columns / 16, height], if wanted
    const float* sums32;  // [columns / 32, height], if wanted
    size_t first_row;
    size_t rows;
    size_t height;
  };

  // x: [rows, columns], in use until the next call. Rows are shared out to tiles evenly. `columns`
  // is a multiple of the groups wanted.
  void Set(ComputePool& pool, const float* x, size_t rows, size_t columns, const Layout& layout);

  size_t tiles() const { return layout_.tiles; }
  Tile tile(size_t index) const;

 private:
  void FillTile(size_t index);

  Layout layout_ = {};
  const float* source_ = nullptr;
  size_t rows_ = 0;
  size_t columns_ = 0;
  AlignedBuffer<float> x_;
  AlignedBuffer<float> sums16_;
  AlignedBuffer<float> sums32_;
};

}  // namespace kvmesh::shard

#include "services/shard/engine/activations.h"

#include <algorithm>

namespace kvmesh::shard {
namespace {

// x[0..7] + x[8..15], of 32 with x[16..23] + x[24..31] added, then pairwise; always in this order.
template <size_t kCount>
float GroupSum(const float* x) {
  float sums[8];
  for (size_t i = 0; i < 8; ++i) {
    sums[i] = x[i] + x[i + 8];
    if constexpr (kCount == 32) sums[i] += x[i + 16] + x[i + 24];
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// sums: [columns / kCount, height], the element of this row.
template <size_t kCount>
void GroupSums(const float* x, size_t columns, size_t height, float* sums) {
  for (size_t group = 0; group < columns / kCount; ++group) {
    sums[group * height] = GroupSum<kCount>(x + group * kCount);
  }
}

}  // namespace

void Activations::Set(ComputePool& pool, const float* x, size_t rows, size_t columns,
                      const Layout& layout) {
  layout_ = layout;
  source_ = x;
  rows_ = rows;
  columns_ = columns;
  const size_t stored_rows = std::max(rows, layout.heights);
  if (stored_rows > 1) x_.Room(stored_rows * columns);
  if (layout.sums16) sums16_.Room(stored_rows * (columns / 16));
  if (layout.sums32) sums32_.Room(stored_rows * (columns / 32));
  if (layout.tiles == 1) {
    FillTile(0);
  } else {
    pool.Run(layout.tiles, [this](size_t tile, uint32_t worker) { FillTile(tile); });
  }
}

Activations::Tile Activations::tile(size_t index) const {
  const size_t larger = rows_ % layout_.tiles;  // tiles with one row more
  const size_t first = index * (rows_ / layout_.tiles) + std::min(index, larger);
  const size_t rows = rows_ / layout_.tiles + (index < larger ? 1 : 0);
  return {.x = std::max(rows_, layout_.heights) == 1 ? source_ : x_.data() + first * columns_,
          .sums16 = layout_.sums16 ? sums16_.data() + first * (columns_ / 16) : nullptr,
          .sums32 = layout_.sums32 ? sums32_.data() + first * (columns_ / 32) : nullptr,
          .first_row = first,
          .rows = rows,
          .height = std::max(rows, layout_.heights)};
}

void Activations::FillTile(size_t index) {
  const Tile to = tile(index);
  for (size_t row = 0; row < to.height; ++row) {
    const float* from = row < to.rows ? source_ + (to.first_row + row) * columns_ : nullptr;
    if (to.x != source_) {
      float* x = x_.data() + to.first_row * columns_ + row;
      for (size_t i = 0; i < columns_; ++i) x[i * to.height] = from != nullptr ? from[i] : 0.0f;
    }
    if (layout_.sums16) {
      float* sums = sums16_.data() + to.first_row * (columns_ / 16) + row;
      if (from != nullptr) {
        GroupSums<16>(from, columns_, to.height, sums);
      } else {
        for (size_t i = 0; i < columns_ / 16; ++i) sums[i * to.height] = 0;
      }
    }
    if (layout_.sums32) {
      float* sums = sums32_.data() + to.first_row * (columns_ / 32) + row;
      if (from != nullptr) {
        GroupSums<32>(from, columns_, to.height, sums);
      } else {
        for (size_t i = 0; i < columns_ / 32; ++i) sums[i * to.height] = 0;
      }
    }
  }
}

}  // namespace kvmesh::shard

// Products of a tile of rows with panels of packed weights (panel_layout.h), compiled once for each
// set of instructions. All sets give the same bits, and so do all heights of a tile and both
// ways of reading weights: a result depends on its row and its output's weights alone.
//
// The order of every sum. Features are taken in groups, ascending (PanelLayout::group). Within a
// group, from zero and one feature after another: sum = fma(value, x, sum), where `value` is what
// scale is multiplied with (the weight itself where there is no scale). Then, from zero and one
// group after another: total = fma(scale, sum, total), without a scale total = total + sum; with
// minima then total = fma(minimum, sum of x over the group, total).
//
// With rounded activations (activations.h) a sum of a group of quantised weights is that of the
// whole numbers, codes less zero or table values, times those of x, which is exact; then total =
// fma(scale * scale of x, sum, total), with minima then total = fma(minimum, sum of the rounded x,
// total).
//
// Pure; thread-safe. NaN passes through.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/model/weights.h"
#include "services/shard/engine/kernels/instruction_set.h"
#include "services/shard/engine/kernels/panel_layout.h"

namespace kvmesh::shard {

// Heights of the tiles that `multiply` has kernels for, at most kDirectRowsMax rows; a tile of
// another height is filled up.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr size_t kDirectHeights[] = {1, 8};  // the others differ in a loop's length only
#else
inline constexpr size_t kDirectHeights[] = {1, 2, 3, 4, 6, 8};
#endif
inline constexpr size_t kDirectRowsMax = 8;
// Tallest tile of any set's `multiply_widened`.
inline constexpr size_t kTileRowsMax = 12;

struct PanelProduct {
  const uint8_t* panels;  // one after another
  size_t panel_bytes;
  size_t columns;
  const float* x;     // [columns, height]
  const float* sums;  // of x over the groups: [columns / group, height]; of types with minima
  // In place of x, where activations are rounded:
  const int32_t* x_pairs;      // [columns / 2, height]: words of two features, see Activations
  const float* x_scales;       // [columns / group, height]
  const int32_t* x_code_sums;  // of the words: [columns / group, height]
  size_t rows;                 // results stored: at most the height
  float* out;                  // [rows, out_stride]
  size_t out_stride;
  size_t outputs;  // of all panels; the last one may have fewer than kPanelRows
};
using MultiplyPanel = void (*)(const PanelProduct& product);

// Writes a panel with its values widened to f32, for multiply_widened; WidenedBytes of room.
using WidenPanel = void (*)(const uint8_t* panel, size_t columns, uint8_t* widened);

struct MatmulKernels {
  // Widen weights in registers, anew for every tile: for products of up to direct_tiles_max tiles,
  // which find a panel in the cache after the first. [type][height - 1], null where the height is
  // not among kDirectHeights.
  MultiplyPanel multiply[model::kWeightTypeCount][kDirectRowsMax];
  // The panel widened once, for products of more tiles. Null for f32, whose panels are as widened.
  WidenPanel widen[model::kWeightTypeCount];
  MultiplyPanel multiply_widened[model::kWeightTypeCount][kTileRowsMax];
  // Heights of the tiles of multiply_widened: from half of it, rounded up, to tile_rows.
  size_t tile_rows;
  // So many tiles are faster with panels as they are.
  size_t direct_tiles_max;
};

// Groups of [scale, minimum if there are any, values], each [.., 32 outputs] of f32.
constexpr size_t WidenedBytes(const PanelLayout& layout, size_t columns) {
  const size_t headers = layout.quantised() ? columns / layout.group * (layout.has_min ? 2 : 1) : 0;
  return (columns + headers) * kPanelRows * sizeof(float);
}

// To run them the processor must have `set` (MissingFeatures).
const MatmulKernels& MatmulKernelsOf(InstructionSet set);
// With rounded activations; of quantised types alone.
const MatmulKernels& RoundedMatmulKernelsOf(InstructionSet set);

extern const MatmulKernels kMatmulAvx2;
extern const MatmulKernels kMatmulAvx512;
extern const MatmulKernels kRoundedMatmulAvx2;
extern const MatmulKernels kRoundedMatmulAvx512;
extern const MatmulKernels kRoundedMatmulAvx512Vnni;

}  // namespace kvmesh::shard

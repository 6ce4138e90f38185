#include "tests/unit/engine/kernels/matmul_testing.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "services/shard/engine/kernels/pack_blocks.h"
#include "services/shard/engine/kernels/panel_layout.h"

namespace kvmesh::shard {
namespace {

// One row of weights as scales, values and minima.
struct Taken {
  size_t group;               // features of one
  std::vector<float> values;  // [columns]
  std::vector<float> scales;  // [groups]; empty: none
  std::vector<float> minima;  // [groups]; empty: none
};

Taken TakeApart(const TestWeights& weights, size_t row) {
  const model::WeightType type = weights.tensor().type;
  const PanelLayout layout = LayoutOf(type);
  if (!layout.quantised()) return {.group = layout.group, .values = weights.WidenedRow(row)};
  Taken taken = {.group = layout.group};
  for (size_t block = 0; block < weights.columns() / layout.block; ++block) {
    BlockFields fields;
    ReadStoredBlock(type, weights.stored_row(row) + block * model::InfoOf(type).block_bytes,
                    fields);
    for (size_t i = 0; i < layout.block; ++i) {
      taken.values.push_back(CodeValue(layout, fields.codes[i]));
    }
    for (size_t group = 0; group < layout.groups(); ++group) {
      taken.scales.push_back(GroupScale(layout, fields, group));
      if (layout.has_min) taken.minima.push_back(GroupMin(layout, fields, group));
    }
  }
  return taken;
}

// As activations.h: eights first, then pairwise.
float SumOfGroup(const float* x, size_t count) {
  float sums[8];
  for (size_t i = 0; i < 8; ++i) {
    sums[i] = x[i] + x[i + 8];
    if (count == 32) sums[i] += x[i + 16] + x[i + 24];
  }
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// The power of two by which a group of rounded activations is scaled.
double ScaleOf(const float* x, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest < 0x1p-112f ? 0x1p-126 : std::ldexp(1.0, std::ilogb(largest) - 14);
}

struct RoundedDot {
  int64_t products;  // of values and codes of x
  int64_t codes;     // sum
};

RoundedDot DotOfCodes(const float* values, const float* x, size_t count, double unit) {
  RoundedDot dot = {};
  for (size_t i = 0; i < count; ++i) {
    const double code = std::clamp(std::nearbyint(x[i] / unit), -32767.0, 32767.0);
    dot.products += static_cast<int64_t>(values[i] * code);
    dot.codes += static_cast<int64_t>(code);
  }
  return dot;
}

double Gamma(size_t n) {
  const double nu = static_cast<double>(n) * 0x1p-24;
  return nu / (1 - nu);
}

}  // namespace

ExactDot DotInDouble(const Numerics& numerics, const TestWeights& weights, size_t row,
                     const float* x) {
  const Taken taken = TakeApart(weights, row);
  const size_t groups = (weights.columns() + taken.group - 1) / taken.group;
  const bool rounds = numerics.rounds_to_16 && !taken.scales.empty();
  double sum = 0;
  double magnitude = 0;
  double rounding = 0;
  double scale_max = 1;
  for (size_t i = 0; i < weights.columns(); ++i) {
    const size_t group = i / taken.group;
    const double scale = taken.scales.empty() ? 1 : double{taken.scales[group]};
    const double min = taken.minima.empty() ? 0 : double{taken.minima[group]};
    scale_max = std::max(scale_max, std::abs(scale));
    sum += (scale * taken.values[i] + min) * x[i];
    double off = 0;
    if (rounds) {
      const double unit = ScaleOf(x + group * taken.group, taken.group);
      off = std::abs(x[i]) > 32767 * unit ? unit : unit / 2;
      rounding += std::abs(scale * taken.values[i] + min) * off;
    }
    magnitude += (std::abs(scale * taken.values[i]) + std::abs(min)) * (std::abs(x[i]) + off);
  }
  const size_t in_group = rounds ? 1 : std::min(taken.group, weights.columns()) + 5;
  return {.value = sum,
          .bound = Gamma(in_group + 2 * groups) * magnitude + rounding +
                   static_cast<double>(weights.columns() + 2 * groups) * 0x1p-150 * scale_max};
}

float DotInOrder(const Numerics& numerics, const TestWeights& weights, size_t row, const float* x) {
  const Taken taken = TakeApart(weights, row);
  const bool rounds = numerics.rounds_to_16 && !taken.scales.empty();
  float total = 0;
  for (size_t begin = 0; begin < weights.columns(); begin += taken.group) {
    const size_t end = std::min(begin + taken.group, weights.columns());
    const size_t group = begin / taken.group;
    const float min = taken.minima.empty() ? 0 : taken.minima[group];
    if (rounds) {
      const double unit = ScaleOf(x + begin, taken.group);
      const RoundedDot dot = DotOfCodes(&taken.values[begin], x + begin, taken.group, unit);
      total = std::fma(static_cast<float>(taken.scales[group] * unit),
                       static_cast<float>(dot.products), total);
      if (!taken.minima.empty()) {
        total = std::fma(min, static_cast<float>(unit * static_cast<double>(dot.codes)), total);
      }
      continue;
    }
    float sum = 0;
    for (size_t i = begin; i < end; ++i) sum = std::fma(taken.values[i], x[i], sum);
    total = taken.scales.empty() ? total + sum : std::fma(taken.scales[group], sum, total);
    if (!taken.minima.empty()) total = std::fma(min, SumOfGroup(x + begin, taken.group), total);
  }
  return total;
}

std::vector<float> Multiplied(ComputePool& pool, const Numerics& numerics,
                              const TestWeights& weights, absl::Span<const float> x) {
  WeightArena arena;
  const auto packed = PackedMatrix::Pack(pool, arena, weights.tensor(), 0, numerics);
  EXPECT_TRUE(packed.ok()) << packed.status();
  const size_t rows = x.size() / weights.columns();
  std::vector<float> out(rows * weights.rows(), NAN);
  MultiplyScratch scratch;
  Multiply(pool, scratch, numerics, x.data(), rows, {{&*packed, out.data()}});
  return out;
}

}  // namespace kvmesh::shard

#include "services/shard/engine/multiply.h"

#include <algorithm>
#include <vector>

#include "services/shard/engine/activations.h"
#include "services/shard/engine/kernels/aligned_buffer.h"
#include "services/shard/engine/kernels/matmul.h"
#include "services/shard/engine/kernels/panel_layout.h"

namespace kvmesh::shard {
namespace {

size_t PanelsOf(const PackedMatrix& matrix) {
  return (matrix.rows() + kPanelRows - 1) / kPanelRows;
}

// Panels are numbered through all products.
size_t PanelsOf(absl::Span<const Product> products) {
  size_t panels = 0;
  for (const Product& product : products) panels += PanelsOf(*product.weights);
  return panels;
}

// The product that has panel number `panel`, which becomes the number within it.
const Product& ProductOf(absl::Span<const Product> products, size_t& panel) {
  size_t index = 0;
  while (panel >= PanelsOf(*products[index].weights)) panel -= PanelsOf(*products[index++].weights);
  return products[index];
}

size_t DirectHeight(size_t rows) {
  return *std::lower_bound(std::begin(kDirectHeights), std::end(kDirectHeights), rows);
}

Activations::Layout LayoutFor(const MatmulKernels& kernels, size_t rows,
                              absl::Span<const Product> products) {
  Activations::Layout layout = {};
  if (rows <= kDirectRowsMax) {
    layout.tiles = 1;
    layout.heights = DirectHeight(rows);
  } else {
    layout.tiles = (rows + kernels.tile_rows - 1) / kernels.tile_rows;
  }
  for (const Product& product : products) {
    const PanelLayout weights = LayoutOf(product.weights->type());
    if (weights.has_min && weights.group == 16) layout.sums16 = true;
    if (weights.has_min && weights.group == 32) layout.sums32 = true;
  }
  return layout;
}

// Where each task's panels begin, and the end. Large shares first and ever smaller ones later, so
// that threads read long runs and yet end at the same time.
void Share(size_t panels, size_t threads, std::vector<size_t>& begins) {
  begins.assign(1, 0);
  size_t left = panels;
  while (left > 0) {
    const size_t share = std::max<size_t>(1, left / (2 * threads));
    for (size_t i = 0; i < threads && left > 0; ++i, left -= share) {
      begins.push_back(begins.back() + share);
    }
  }
}

PanelProduct ProductWith(const Product& product, size_t panel, const Activations::Tile& tile) {
  const PackedMatrix& weights = *product.weights;
  const PanelLayout layout = LayoutOf(weights.type());
  const size_t first_output = panel * kPanelRows;
  return {.panel = weights.packed() + panel * layout.panel_bytes(weights.columns()),
          .columns = weights.columns(),
          .x = tile.x,
          .sums = layout.group == 16 ? tile.sums16 : tile.sums32,
          .rows = tile.rows,
          .out = product.out + tile.first_row * weights.rows() + first_output,
          .out_stride = weights.rows(),
          .outputs = std::min(kPanelRows, weights.rows() - first_output)};
}

}  // namespace

struct MultiplyScratch::Buffers {
  Activations activations;
  std::vector<size_t> begins;
  std::vector<AlignedBuffer<uint8_t>> widened;  // [threads]
};

MultiplyScratch::MultiplyScratch() : buffers_(std::make_unique<Buffers>()) {}
MultiplyScratch::~MultiplyScratch() = default;
MultiplyScratch::MultiplyScratch(MultiplyScratch&&) noexcept = default;
MultiplyScratch& MultiplyScratch::operator=(MultiplyScratch&&) noexcept = default;

namespace {

// One tile: each panel is read once.
void MultiplyDirect(ComputePool& pool, MultiplyScratch::Buffers& buffers,
                    const MatmulKernels& kernels, absl::Span<const Product> products) {
  Share(PanelsOf(products), pool.threads(), buffers.begins);
  const Activations::Tile tile = buffers.activations.tile(0);
  pool.Run(buffers.begins.size() - 1, [&](size_t task, uint32_t worker) {
    for (size_t i = buffers.begins[task]; i < buffers.begins[task + 1]; ++i) {
      size_t panel = i;
      const Product& product = ProductOf(products, panel);
      const auto type = static_cast<size_t>(product.weights->type());
      kernels.multiply[type][tile.height - 1](ProductWith(product, panel, tile));
    }
  });
}

// Many tiles: each panel is widened into the thread's own room and multiplied with one tile after
// another. Few panels are shared out by tiles as well.
void MultiplyWidened(ComputePool& pool, MultiplyScratch::Buffers& buffers,
                     const MatmulKernels& kernels, absl::Span<const Product> products) {
  size_t room = 0;
  for (const Product& product : products) {
    room =
        std::max(room, WidenedBytes(LayoutOf(product.weights->type()), product.weights->columns()));
  }
  buffers.widened.resize(std::max<size_t>(buffers.widened.size(), pool.threads()));
  for (AlignedBuffer<uint8_t>& widened : buffers.widened) widened.Room(room);

  const size_t panels = PanelsOf(products);
  const size_t tiles = buffers.activations.tiles();
  const size_t tasks_wanted = size_t{4} * pool.threads();
  const size_t runs = std::min(tiles, (tasks_wanted + panels - 1) / panels);  // of tiles
  pool.Run(panels * runs, [&](size_t task, uint32_t worker) {
    size_t panel = task / runs;
    const Product& product = ProductOf(products, panel);
    const auto type = static_cast<size_t>(product.weights->type());
    const size_t run = task % runs;
    const uint8_t* widened = nullptr;
    for (size_t i = tiles * run / runs; i < tiles * (run + 1) / runs; ++i) {
      const Activations::Tile tile = buffers.activations.tile(i);
      PanelProduct work = ProductWith(product, panel, tile);
      if (kernels.widen[type] != nullptr) {
        if (widened == nullptr) {
          kernels.widen[type](work.panel, work.columns, buffers.widened[worker].data());
          widened = buffers.widened[worker].data();
        }
        work.panel = widened;
      }
      kernels.multiply_widened[type][tile.height - 1](work);
    }
  });
}

}  // namespace

void Multiply(ComputePool& pool, MultiplyScratch& scratch, const Numerics& numerics, const float* x,
              size_t rows, absl::Span<const Product> products) {
  if (rows == 0) return;
  const MatmulKernels& kernels = MatmulKernelsOf(numerics.set);
  MultiplyScratch::Buffers& buffers = scratch.buffers();
  buffers.activations.Set(pool, x, rows, products[0].weights->columns(),
                          LayoutFor(kernels, rows, products));
  if (rows <= kDirectRowsMax) {
    MultiplyDirect(pool, buffers, kernels, products);
  } else {
    MultiplyWidened(pool, buffers, kernels, products);
  }
}

}  // namespace kvmesh::shard

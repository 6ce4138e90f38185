#include "services/shard/engine/multiply.h"

#include <algorithm>
#include <limits>
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

struct PanelRun {
  size_t begin = 0;
  size_t end = 0;
};

// The tasks of a pool of `threads`: the panels of each thread are one run, so that it reads memory
// front to back, cut into ever smaller pieces, so that whoever is done first can help with the
// rest.
void Share(size_t panels, size_t threads, std::vector<PanelRun>& tasks) {
  tasks.clear();
  for (size_t thread = 0; thread < threads; ++thread) {
    size_t begin = panels * thread / threads;
    const size_t end = panels * (thread + 1) / threads;
    for (size_t task = thread; begin < end; task += threads) {
      const size_t share = std::max<size_t>(1, (end - begin) / 2);
      if (tasks.size() <= task) tasks.resize((task / threads + 1) * threads);
      tasks[task] = {begin, begin + share};
      begin += share;
    }
  }
}

// The kernels of `numerics` for one product, and what they multiply with.
struct Way {
  const MatmulKernels& kernels;
  size_t type;
  PanelLayout layout;
  Activations::Form form;
};

Way WayOf(const Numerics& numerics, const PackedMatrix& weights) {
  const PanelLayout layout = LayoutOf(weights.type());
  const Activations::Form form = Activations::FormFor(layout, numerics.rounds_to_16);
  return {.kernels =
              form.rounded ? RoundedMatmulKernelsOf(numerics.set) : MatmulKernelsOf(numerics.set),
          .type = static_cast<size_t>(weights.type()),
          .layout = layout,
          .form = form};
}

// Of `panels` panels from number `panel` on.
PanelProduct ProductWith(const Product& product, const Way& way, size_t panel, size_t panels,
                         const Activations::Tile& tile) {
  const PackedMatrix& weights = *product.weights;
  const size_t panel_bytes = way.layout.panel_bytes(weights.columns());
  const size_t first_output = panel * kPanelRows;
  return {.panels = weights.packed() + panel * panel_bytes,
          .panel_bytes = panel_bytes,
          .columns = weights.columns(),
          .x = tile.x,
          .sums = tile.sums,
          .x_pairs = tile.pairs,
          .x_scales = tile.scales,
          .x_code_sums = tile.code_sums,
          .rows = tile.rows,
          .out = product.out + tile.first_row * weights.rows() + first_output,
          .out_stride = weights.rows(),
          .outputs = std::min(panels * kPanelRows, weights.rows() - first_output)};
}

}  // namespace

struct MultiplyScratch::Buffers {
  Activations activations;
  std::vector<PanelRun> tasks;
  std::vector<AlignedBuffer<uint8_t>> widened;  // [threads]
};

MultiplyScratch::MultiplyScratch() : buffers_(std::make_unique<Buffers>()) {}
MultiplyScratch::~MultiplyScratch() = default;
MultiplyScratch::MultiplyScratch(MultiplyScratch&&) noexcept = default;
MultiplyScratch& MultiplyScratch::operator=(MultiplyScratch&&) noexcept = default;

namespace {

// Few tiles: each panel is read once, and stays in the cache for all of them.
void MultiplyDirect(ComputePool& pool, MultiplyScratch::Buffers& buffers, const Numerics& numerics,
                    absl::Span<const Product> products) {
  Share(PanelsOf(products), pool.threads(), buffers.tasks);
  pool.Run(buffers.tasks.size(), [&](size_t task, uint32_t worker) {
    const PanelRun panels = buffers.tasks[task];
    size_t run = 0;  // panels of one product
    for (size_t i = panels.begin; i < panels.end; i += run) {
      size_t panel = i;
      const Product& product = ProductOf(products, panel);
      run = std::min(panels.end - i, PanelsOf(*product.weights) - panel);
      const Way way = WayOf(numerics, *product.weights);
      const size_t tiles = buffers.activations.tiles();
      if (tiles > 1) run = 1;
      for (size_t j = 0; j < tiles; ++j) {
        const Activations::Tile tile = buffers.activations.tile(way.form, j);
        way.kernels.multiply[way.type][tile.height - 1](
            ProductWith(product, way, panel, run, tile));
      }
    }
  });
}

// One panel with the tiles from `begin` to `end`: widened into the thread's own room first, unless
// its kernels take it as it is.
void MultiplyPanelWidened(MultiplyScratch::Buffers& buffers, uint32_t worker, const Way& way,
                          const Product& product, size_t panel, size_t begin, size_t end) {
  const uint8_t* widened = nullptr;
  if (way.kernels.widen[way.type] != nullptr) {
    const size_t columns = product.weights->columns();
    uint8_t* room = buffers.widened[worker].data();
    way.kernels.widen[way.type](product.weights->packed() + panel * way.layout.panel_bytes(columns),
                                columns, room);
    widened = room;
  }
  for (size_t i = begin; i < end; ++i) {
    const Activations::Tile tile = buffers.activations.tile(way.form, i);
    PanelProduct work = ProductWith(product, way, panel, 1, tile);
    if (widened != nullptr) work.panels = widened;
    way.kernels.multiply_widened[way.type][tile.height - 1](work);
  }
}

// Many tiles: few panels are shared out by tiles as well.
void MultiplyWidened(ComputePool& pool, MultiplyScratch::Buffers& buffers, const Numerics& numerics,
                     absl::Span<const Product> products) {
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
    const size_t run = task % runs;
    MultiplyPanelWidened(buffers, worker, WayOf(numerics, *product.weights), product, panel,
                         tiles * run / runs, tiles * (run + 1) / runs);
  });
}

}  // namespace

void Multiply(ComputePool& pool, MultiplyScratch& scratch, const Numerics& numerics, const float* x,
              size_t rows, absl::Span<const Product> products) {
  if (rows == 0) return;
  MultiplyScratch::Buffers& buffers = scratch.buffers();
  const size_t columns = products[0].weights->columns();
  size_t direct_tiles_max = std::numeric_limits<size_t>::max();
  for (const Product& product : products) {
    direct_tiles_max =
        std::min(direct_tiles_max, WayOf(numerics, *product.weights).kernels.direct_tiles_max);
  }
  const bool direct = (rows + kDirectRowsMax - 1) / kDirectRowsMax <= direct_tiles_max;
  const size_t tile_rows = direct ? kDirectRowsMax : MatmulKernelsOf(numerics.set).tile_rows;
  const size_t tiles = (rows + tile_rows - 1) / tile_rows;
  buffers.activations.Set(x, rows, columns, tiles,
                          direct ? DirectHeight((rows + tiles - 1) / tiles) : 0);
  for (const Product& product : products) {
    buffers.activations.Prepare(pool, StepKernelsOf(numerics.set),
                                WayOf(numerics, *product.weights).form);
  }
  if (direct) {
    MultiplyDirect(pool, buffers, numerics, products);
  } else {
    MultiplyWidened(pool, buffers, numerics, products);
  }
}

}  // namespace kvmesh::shard

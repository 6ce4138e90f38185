// What the arbiter's core and the read index allocate, counted where they do.
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "services/meta/core/arbiter.h"
#include "services/meta/index/read_index.h"
#include "tests/bench/meta/bench_parts.h"

namespace {

std::atomic<int64_t> allocated{0};

void* Allocate(std::size_t size, std::size_t align) {
  void* memory = align > alignof(std::max_align_t)
                     ? std::aligned_alloc(align, (size + align - 1) / align * align)
                     : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  allocated.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  allocated.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

// All of the program's; the forms that are not here call these.
void* operator new(std::size_t size) {
  return Allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t align) {
  return Allocate(size, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept {
  Free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  Free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  Free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  Free(memory);
}

namespace kvmesh::bench {
namespace {

constexpr uint32_t kPageRows = 500;

meta::SlabFacts FactsOf(const meta::RowOpened& row, const meta::RowSlab& slab, bool cut_points) {
  return {.name = {.key = row.key, .layers = slab.layers, .write_id = slab.write_id},
          .key_namespace = cli::ChatCorpus::key_namespace(),
          .size_bytes = slab.size_bytes,
          .token_count = row.token_count,
          .text_bytes = row.text_bytes,
          .block_hash = row.block_hash,
          .tail_hash = row.tail_hash,
          .tokens_sha256 = row.tokens_sha256,
          .cut_points = cut_points ? row.cut_points : std::vector<slab::CutPoint>(),
          .model_layers = row.slabs.back().layers.end};
}

struct Sizes {
  double core = 0;
  double index = 0;
  double rows = 0;
  double inner_cut_points = 0;
};

// The core learns the rows as after a restart, from an inventory; the index follows it.
Sizes Fill(const cli::ChatCorpus& corpus, bool cut_points) {
  const int64_t before = allocated.load();
  auto arbiter = std::make_unique<meta::Arbiter>(meta::ArbiterOptions());
  auto index = std::make_unique<meta::ReadIndex>();
  int64_t of_index = 0;
  MonoTime now;
  const auto apply = [&](const meta::Command& command) {
    now += absl::Milliseconds(1);
    std::vector<meta::Effect> effects = arbiter->Apply(command, now);
    const int64_t start = allocated.load();
    for (const meta::Effect& effect : effects) {
      std::visit(
          [&index](const auto& it) {
            if constexpr (requires { index->Apply(it); }) index->Apply(it);
          },
          effect);
    }
    of_index += allocated.load() - start;
  };
  apply(
      meta::StoreHello{.stream = meta::StreamId{1}, .address = "a:1", .budget_bytes = 1ULL << 60});
  for (uint32_t row = 0; row < corpus.size(); row += kPageRows) {
    const uint32_t end = std::min(corpus.size(), row + kPageRows);
    meta::StoreInventory page{.stream = meta::StreamId{1}, .last = end == corpus.size()};
    for (uint32_t i = row; i < end; ++i) {
      const meta::RowOpened opened = corpus.Row(i);
      for (const meta::RowSlab& slab : opened.slabs) {
        page.slabs.push_back(FactsOf(opened, slab, cut_points));
      }
    }
    apply(page);
  }
  while (arbiter->HasMore()) apply(meta::GoOn{});
  const auto all = static_cast<double>(allocated.load() - before);
  Sizes sizes{.index = static_cast<double>(of_index),
              .rows = static_cast<double>(index->rows()),
              .inner_cut_points = static_cast<double>(index->cut_points() - index->rows())};
  sizes.core = all - sizes.index;
  return sizes;
}

}  // namespace

void BenchMemory(const PartOptions& options) {
  const cli::ChatCorpus corpus(options.rows, 1);
  const Sizes ends = Fill(corpus, false);
  const Sizes all = Fill(corpus, true);
  if (ends.rows != options.rows || all.rows != options.rows) Fail("not all rows were opened");
  std::printf(
      "memory of %u rows of two slabs, as allocated: %.0f bytes a row (core %.0f, index %.0f), "
      "%.0f "
      "bytes for each of %.1f inner cut points a row\n",
      options.rows, (ends.core + ends.index) / ends.rows, ends.core / ends.rows,
      ends.index / ends.rows,
      (all.core + all.index - ends.core - ends.index) / all.inner_cut_points,
      all.inner_cut_points / all.rows);
}

}  // namespace kvmesh::bench

// Products with packed weights against what bounds them, measured in turns in the same run: few
// rows against the time that the mere reading of the weights' bytes takes, many rows against the
// time that their multiply-adds take in registers, of the instruction that the product uses.
// Counters:
//   bound        fastest time of the bound / fastest time of the products
//   gb_per_s     weights read, or
//   gflop_per_s  operations, and `against` what the bound had of it
// The fastest of kRounds counts: other work on the machine can only slow both down.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "services/shard/engine/kernels/peaks.h"
#include "services/shard/engine/machine_bounds.h"
#include "services/shard/engine/multiply.h"

namespace kvmesh::shard {
namespace {

using model::WeightType;

constexpr int kRounds = 5;

double Now(bool cpu) {
  timespec now = {};
  clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One thread is timed by its own clock, which stands still while others have its processor.
template <typename Work>
double SecondsOf(ComputePool& pool, const Work& work) {
  const bool cpu = pool.threads() == 1;
  const double begin = Now(cpu);
  work();
  return Now(cpu) - begin;
}

struct Shape {
  size_t outputs;
  size_t columns;
};

using Steps = std::vector<std::vector<Shape>>;  // [steps][matrices that share their input]

// Of `layers` layers of SmolLM2-135M; of 576 features types of blocks of 256 have 512.
Steps SmolLm2Layers(size_t layers, WeightType type) {
  const size_t hidden = model::InfoOf(type).block_size == 256 ? 512 : 576;
  Steps steps;
  for (size_t layer = 0; layer < layers; ++layer) {
    steps.push_back({{576, hidden}, {192, hidden}, {192, hidden}});
    steps.push_back({{576, hidden}});
    steps.push_back({{1536, hidden}, {1536, hidden}});
    steps.push_back({{576, 1536}});
  }
  return steps;
}

// Of a whole step of SmolLM2-135M.
Steps SmolLm2(WeightType type) {
  Steps steps = SmolLm2Layers(30, type);
  steps.push_back({{49152, steps[0][0].columns}});
  return steps;
}

class Matrices {
 public:
  Matrices(ComputePool& pool, const Numerics& numerics, WeightType type, size_t rows,
           const Steps& steps)
      : pool_(pool), numerics_(numerics), rows_(rows) {
    WeightArena arena;
    size_t columns_max = 0;
    size_t outputs_max = 0;
    for (const std::vector<Shape>& step : steps) {
      steps_.emplace_back();
      for (const Shape& shape : step) {
        steps_.back().push_back(Packed(arena, type, shape));
        bytes_ += steps_.back().back().bytes();
        operations_ += 2 * rows * shape.outputs * shape.columns;
        columns_max = std::max(columns_max, shape.columns);
        outputs_max = std::max(outputs_max, shape.outputs);
      }
    }
    x_.assign(rows * columns_max, 0.5f);
    outs_.assign(3, std::vector<float>(rows * outputs_max));
  }

  void Multiply() {
    for (const std::vector<PackedMatrix>& step : steps_) {
      Product products[3];
      for (size_t i = 0; i < step.size(); ++i) products[i] = {&step[i], outs_[i].data()};
      shard::Multiply(pool_, scratch_, numerics_, x_.data(), rows_, {products, step.size()});
    }
  }

  size_t bytes() const { return bytes_; }
  size_t operations() const { return operations_; }

 private:
  PackedMatrix Packed(WeightArena& arena, WeightType type, const Shape& shape) {
    const model::WeightTypeInfo& info = model::InfoOf(type);
    std::vector<uint8_t> bytes(shape.outputs *
                               (shape.columns / info.block_size * info.block_bytes));
    std::mt19937 random(1);
    // No byte makes the exponent of a half or a float all ones.
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 0x3C);
    return *PackedMatrix::Pack(
        pool_, arena,
        {.name = "bench", .type = type, .shape = {shape.outputs, shape.columns}, .data = bytes}, 0,
        numerics_);
  }

  ComputePool& pool_;
  Numerics numerics_;
  size_t rows_;
  std::vector<std::vector<PackedMatrix>> steps_;
  std::vector<float> x_;
  std::vector<std::vector<float>> outs_;
  MultiplyScratch scratch_;
  size_t bytes_ = 0;
  size_t operations_ = 0;
};

// A decode step's products with `rows` rows: bound by reading.
void BM_FewRows(benchmark::State& state, Numerics numerics, WeightType type) {
  const auto threads = static_cast<uint32_t>(state.range(0));
  const auto rows = static_cast<size_t>(state.range(1));
  ComputePool pool(threads, [] {});
  Matrices matrices(pool, numerics, type, rows, SmolLm2(type));
  Reading reading = *Reading::Make(pool, PeaksOf(numerics.set), matrices.bytes());
  double products = 1e9;
  double bound = 1e9;
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      bound = std::min(bound, SecondsOf(pool, [&] { reading.Run(); }));
      products = std::min(products, SecondsOf(pool, [&] { matrices.Multiply(); }));
    }
    state.SetIterationTime(products);
  }
  const double bytes = static_cast<double>(matrices.bytes());
  state.counters["gb_per_s"] = bytes / products * 1e-9;
  state.counters["against"] = static_cast<double>(reading.bytes()) / bound * 1e-9;
  state.counters["bound"] = (bytes / products) / (static_cast<double>(reading.bytes()) / bound);
}

// Products of many rows: bound by multiply-adds.
void BM_ManyRows(benchmark::State& state, Numerics numerics, WeightType type, Steps steps) {
  const auto threads = static_cast<uint32_t>(state.range(0));
  const auto rows = static_cast<size_t>(state.range(1));
  ComputePool pool(threads, [] {});
  Matrices matrices(pool, numerics, type, rows, steps);
  constexpr size_t kPeakRounds = 500'000;
  const Peaks& peaks = PeaksOf(numerics.set);
  const bool words = numerics.rounds_to_16 && model::InfoOf(type).block_size > 1;
  double products = 1e9;
  double bound = 1e9;
  for (auto _ : state) {
    for (int round = 0; round < kRounds; ++round) {
      bound = std::min(
          bound, SecondsOf(pool, [&] {
            pool.Run(threads, [&](size_t task, uint32_t worker) {
              benchmark::DoNotOptimize((words ? peaks.dot_words : peaks.multiply_add)(kPeakRounds));
            });
          }));
      products = std::min(products, SecondsOf(pool, [&] { matrices.Multiply(); }));
    }
    state.SetIterationTime(products);
  }
  const double peak =
      static_cast<double>(threads * kPeakRounds *
                          (words ? peaks.dot_words_operations : peaks.multiply_add_operations)) /
      bound;
  const double rate = static_cast<double>(matrices.operations()) / products;
  state.counters["gflop_per_s"] = rate * 1e-9;
  state.counters["against"] = peak * 1e-9;
  state.counters["bound"] = rate / peak;
}

void Register(const Numerics& numerics) {
  const std::string set = numerics.id + ":" + std::string(NameOf(numerics.set));
  for (size_t i = 0; i < model::kWeightTypeCount; ++i) {
    const auto type = static_cast<WeightType>(i);
    const std::string name(model::InfoOf(type).name);
    benchmark::RegisterBenchmark(("few_rows/" + set + "/" + name).c_str(), BM_FewRows, numerics,
                                 type)
        ->ArgNames({"threads", "rows"})
        ->ArgsProduct({{1, 2}, {1, 2, 4, 8, 32}})
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    const std::pair<const char*, Steps> models[] = {{"4096x4096", {{{4096, 4096}}}},
                                                    {"smollm2_layer", SmolLm2Layers(1, type)}};
    for (const auto& [shapes, steps] : models) {
      benchmark::RegisterBenchmark(("many_rows/" + set + "/" + name + "/" + shapes).c_str(),
                                   BM_ManyRows, numerics, type, steps)
          ->ArgNames({"threads", "rows"})
          ->ArgsProduct({{1, 2}, {512}})
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace kvmesh::shard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const kvmesh::shard::InstructionSet set : kvmesh::shard::kInstructionSets) {
    for (const char* id : {"round16:", "fma32:"}) {
      const auto numerics =
          kvmesh::shard::NumericsNamed(id + std::string(kvmesh::shard::NameOf(set)));
      if (numerics.ok()) {
        kvmesh::shard::Register(*numerics);
      } else {
        std::printf("%s\n", std::string(numerics.status().message()).c_str());
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

// Attention of one decode row, in turns with the reading of weights as in a step of SmolLM2-135M,
// against the time that all threads take to read as many bytes in one run. Counters:
//   bound     time of the reading / time of attention, medians of the steps
//   gb_per_s  keys and values attended, and `against` what the reading had of them
// `layers` 1 stays in the caches: what attention takes beside memory.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "services/shard/engine/block_attention.h"
#include "services/shard/engine/machine_bounds.h"
#include "services/shard/engine/numerics.h"

namespace kvmesh::shard {
namespace {

constexpr size_t kHeads = 9;
constexpr size_t kKvHeads = 3;
constexpr size_t kHeadDim = 64;
constexpr size_t kLayers = 30;
constexpr size_t kWeightBytes = size_t{96} << 20;
constexpr size_t kSteps = 41;

double Now(bool cpu) {
  timespec now = {};
  clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double>& seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + kSteps / 2, seconds.end());
  return seconds[kSteps / 2];
}

// One session's keys and values of some layers.
class Session {
 public:
  Session(const KeyValueLayout& layout, size_t layers, size_t tokens) {
    const std::shared_ptr<BlockPool> pool = BlockPool::Make(layout.block_bytes());
    for (size_t layer = 0; layer < layers; ++layer) {
      layers_.push_back(std::make_unique<KeyValueState>(layout, pool));
    }
    // Blocks of all layers in turns, as generating lays them out.
    for (size_t token = KeyValueState::kBlockTokens; token <= tokens;
         token += KeyValueState::kBlockTokens) {
      for (const auto& layer : layers_) layer->Reserve(token);
    }
    for (const auto& layer : layers_) layer->Reserve(tokens);
    std::vector<float> numbers(kKvHeads * kHeadDim);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01f * static_cast<float>(i % 17);
    std::vector<uint8_t> row(layout.row_bytes());
    kStepKernelsAvx2.round[static_cast<size_t>(layout.dtype)](numbers.data(), numbers.size(),
                                                              row.data());
    for (const auto& layer : layers_) {
      for (size_t token = 0; token < tokens; ++token) layer->Put(token, row.data(), row.data());
    }
  }
  KeyValueState* layer(size_t i) { return layers_[i].get(); }

 private:
  std::vector<std::unique_ptr<KeyValueState>> layers_;
};

void BM_DecodeRow(benchmark::State& state, KvDtype dtype) {
  const auto threads = static_cast<uint32_t>(state.range(0));
  const auto tokens = static_cast<size_t>(state.range(1));
  const auto layers = static_cast<size_t>(state.range(2));
  const bool cpu = threads == 1;
  const InstructionSet set = NumericsNamed("")->set;
  ComputePool pool(threads, [] {});
  const KeyValueLayout layout{.kv_heads = kKvHeads, .head_dim = kHeadDim, .dtype = dtype};
  BlockAttention attention(pool, StepKernelsOf(set), layout, kHeads);
  Session session(layout, layers, tokens);
  const size_t row_bytes = tokens * 2 * layout.row_bytes();
  std::vector<Reading> shares;
  for (size_t layer = 0; layer < layers; ++layer) {
    shares.push_back(*Reading::Make(pool, PeaksOf(set), row_bytes));
  }
  std::vector<Reading> between;
  for (size_t layer = 0; layer < layers && layers > 1; ++layer) {
    between.push_back(*Reading::Make(pool, PeaksOf(set), kWeightBytes / kLayers));
  }
  const std::vector<float> query(kHeads * kHeadDim, 0.1f);
  std::vector<float> out(kHeads * kHeadDim);
  std::vector<double> attended(kSteps);
  std::vector<double> read(kSteps);
  for (auto _ : state) {
    for (size_t step = 0; step < kSteps; ++step) {
      for (size_t layer = 0; layer < layers; ++layer) {
        const LayerRow row{.position = tokens - 1, .state = session.layer(layer)};
        if (!between.empty()) between[layer].Run();
        const double begin = Now(cpu);
        attention.Run({&row, 1}, query.data(), out.data());
        attended[step] += Now(cpu) - begin;
      }
      for (size_t layer = 0; layer < layers; ++layer) {
        if (!between.empty()) between[layer].Run();
        const double begin = Now(cpu);
        shares[layer].Run();
        read[step] += Now(cpu) - begin;
      }
    }
    state.SetIterationTime(Median(attended));
  }
  const double seconds = Median(attended);
  const double bytes = static_cast<double>(layers * row_bytes);
  const double against = static_cast<double>(layers * shares[0].bytes()) / Median(read);
  state.counters["us_a_layer"] = seconds / static_cast<double>(layers) * 1e6;
  state.counters["gb_per_s"] = bytes / seconds * 1e-9;
  state.counters["against"] = against * 1e-9;
  state.counters["bound"] = bytes / seconds / against;
}

void Register() {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32}) {
    benchmark::RegisterBenchmark(("decode_row/" + std::string(NameOf(dtype))).c_str(), BM_DecodeRow,
                                 dtype)
        ->ArgNames({"threads", "tokens", "layers"})
        ->ArgsProduct({{1, 2}, {128, 1024, 4096}, {1, kLayers}})
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace kvmesh::shard

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  kvmesh::shard::Register();
  benchmark::RunSpecifiedBenchmarks();
}

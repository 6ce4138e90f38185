#include "services/shard/engine/machine_bounds.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/weight_arena.h"

namespace kvmesh::shard {
namespace {

constexpr int kRounds = 5;
constexpr size_t kPeakRounds = 500'000;

// What threads found, kept so that no work is left out.
struct alignas(64) Kept {
  volatile uint64_t value = 0;
};

double FastestSeconds(const Clock& clock, absl::FunctionRef<void()> work) {
  double fastest = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const MonoTime begin = clock.Now();
    work();
    fastest = std::min(fastest, absl::ToDoubleSeconds(clock.Now() - begin));
  }
  return std::max(fastest, 1e-9);
}

}  // namespace

Reading::Reading(ComputePool& pool, const Peaks& peaks, size_t shares,
                 std::shared_ptr<uint8_t> data)
    : pool_(pool), peaks_(peaks), shares_(shares), data_(std::move(data)) {}

absl::StatusOr<Reading> Reading::Make(ComputePool& pool, const Peaks& peaks, size_t bytes) {
  const size_t shares = std::max<size_t>(1, (bytes + kShare - 1) / kShare);
  WeightArena arena;
  KVMESH_ASSIGN_OR_RETURN(std::shared_ptr<uint8_t> data, arena.Allocate(shares * kShare));
  std::fill_n(data.get(), shares * kShare, uint8_t{1});
  return Reading(pool, peaks, shares, std::move(data));
}

void Reading::Run() {
  pool_.Run(shares_, [this](size_t share, uint32_t) {
    Kept kept;
    kept.value = peaks_.read(data_.get() + share * kShare, kShare);
  });
}

absl::StatusOr<MachineBounds> MeasureBounds(ComputePool& pool, InstructionSet set, size_t bytes,
                                            const Clock& clock) {
  const Peaks& peaks = PeaksOf(set);
  KVMESH_ASSIGN_OR_RETURN(Reading reading, Reading::Make(pool, peaks, bytes));
  const auto operations_a_second = [&](float (*work)(size_t), size_t operations) {
    std::vector<Kept> kept(pool.threads());
    const double seconds = FastestSeconds(clock, [&] {
      pool.Run(pool.threads(), [&](size_t i, uint32_t) {
        kept[i].value = static_cast<uint64_t>(work(kPeakRounds));
      });
    });
    return static_cast<double>(pool.threads() * kPeakRounds * operations) / seconds;
  };
  MachineBounds bounds;
  bounds.bytes_read =
      static_cast<double>(reading.bytes()) / FastestSeconds(clock, [&] { reading.Run(); });
  bounds.float_operations = operations_a_second(peaks.multiply_add, peaks.multiply_add_operations);
  bounds.word_operations = operations_a_second(peaks.dot_words, peaks.dot_words_operations);
  return bounds;
}

uint64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace kvmesh::shard

#include "services/blob/core/pace.h"

#include <gtest/gtest.h>

#include <random>

namespace kvmesh::blob {
namespace {

constexpr uint64_t kRate = 1 << 20;  // bytes a second
constexpr MonoTime kStart = absl::Seconds(1000);

TEST(Pace, AReadWaitsUntilTheOnesBeforeItArePaidFor) {
  Pace pace(kRate);
  EXPECT_EQ(pace.Turn(kRate / 2, kStart), kStart);
  EXPECT_EQ(pace.Turn(kRate / 4, kStart), kStart + absl::Milliseconds(500));
  EXPECT_EQ(pace.Turn(1, kStart + absl::Milliseconds(600)), kStart + absl::Milliseconds(750));
}

TEST(Pace, TimeWithoutReadsEarnsNothing) {
  Pace pace(kRate);
  EXPECT_EQ(pace.Turn(kRate, kStart), kStart);
  const MonoTime later = kStart + absl::Hours(1);
  EXPECT_EQ(pace.Turn(kRate, later), later);
  EXPECT_EQ(pace.Turn(kRate, later), later + absl::Seconds(1));
}

TEST(Pace, ReadingNothingWaitsForNothingMore) {
  Pace pace(kRate);
  EXPECT_EQ(pace.Turn(0, kStart), kStart);
  EXPECT_EQ(pace.Turn(kRate, kStart), kStart);
}

// However reads and pauses follow one another: between the first read and the beginning of any
// later one no more was read than the rate allows.
TEST(Pace, NoSpanOfTimeReadsMoreThanTheRateAllows) {
  std::mt19937 random(1);
  Pace pace(kRate);
  MonoTime now = kStart;
  double read = 0;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t bytes = random() % (1 << 18);
    const MonoTime turn = pace.Turn(bytes, now);
    ASSERT_GE(turn, now);
    ASSERT_LE(read, absl::ToDoubleSeconds(turn - kStart) * kRate + 8);  // of rounding
    read += static_cast<double>(bytes);
    now = turn + absl::Microseconds(random() % 2 == 0 ? 0 : random() % 300'000);
  }
}

}  // namespace
}  // namespace kvmesh::blob

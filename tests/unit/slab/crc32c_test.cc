#include "common/slab/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvmesh::slab {
namespace {

TEST(Crc32c, TheCheckValueOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc32c(""), 0U);
}

TEST(Crc32c, CombiningGivesTheCrcOfTheConcatenation) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string a(random() % 5000, '\0');
    std::string b(random() % 5000, '\0');
    for (char& c : a) c = static_cast<char>(random());
    for (char& c : b) c = static_cast<char>(random());
    EXPECT_EQ(CombineCrc32c(Crc32c(a), Crc32c(b), b.size()), Crc32c(a + b)) << round;
    EXPECT_EQ(ExtendCrc32c(Crc32c(a), b), Crc32c(a + b)) << round;
  }
}

TEST(Crc32c, CombiningOverALongTailOfZerosEqualsReadingThem) {
  const std::string zeros(300000, '\0');
  EXPECT_EQ(CombineCrc32c(Crc32c("abc"), Crc32c(zeros), zeros.size()), Crc32c("abc" + zeros));
}

}  // namespace
}  // namespace kvmesh::slab

// Products with every weight type by every set of instructions of this processor: close to the
// exact sum, in one order, and each row for itself.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "services/shard/engine/kernels/matmul.h"
#include "services/shard/engine/multiply.h"
#include "tests/unit/engine/kernel_testing.h"
#include "tests/unit/engine/kernels/guarded_memory.h"
#include "tests/unit/engine/kernels/matmul_testing.h"
#include "tests/unit/engine/kernels/weight_testing.h"

namespace kvmesh::shard {
namespace {

using model::WeightType;

struct Shape {
  size_t rows;  // of x
  size_t outputs;
  size_t columns;
};

// Both sides of every boundary: panels of 32, tiles of 8 and 6 or 12, groups of 16, 32 and 256,
// rows that take panels as they are (32 or 128) and more.
std::vector<Shape> ShapesFor(WeightType type) {
  std::vector<Shape> shapes = {{1, 1, 256},   {1, 33, 512}, {2, 32, 256},  {3, 31, 512},
                               {5, 64, 256},  {8, 70, 512}, {9, 33, 256},  {13, 32, 512},
                               {25, 5, 256},  {32, 2, 256}, {33, 40, 768}, {128, 3, 256},
                               {129, 33, 512}};
  const size_t block = model::InfoOf(type).block_size;
  if (block <= 32) shapes.insert(shapes.end(), {{1, 40, 32}, {7, 3, 96}, {12, 33, 288}});
  if (block == 1) {
    shapes.insert(shapes.end(), {{1, 33, 1}, {2, 5, 255}, {4, 32, 257}, {11, 2, 300}, {1, 9, 513}});
  }
  return shapes;
}

// Every id with every set of instructions.
std::vector<std::string> AllNumerics() {
  std::vector<std::string> names;
  for (const char* id : {"round16", "fma32"}) {
    for (const InstructionSet set : kInstructionSets) {
      names.push_back(std::string(id) + ":" + std::string(NameOf(set)));
    }
  }
  return names;
}

class MatmulTest : public ::testing::TestWithParam<std::tuple<std::string, WeightType>> {
 protected:
  void SetUp() override {
    const auto numerics = NumericsNamed(std::get<0>(GetParam()));
    if (!numerics.ok()) GTEST_SKIP() << numerics.status();
    numerics_ = *numerics;
  }
  WeightType type() const { return std::get<1>(GetParam()); }

  Numerics numerics_;
  ComputePool pool_{2, [] {}};
};

TEST_P(MatmulTest, ProductsAreWithinTheBoundOfTheExactSum) {
  for (const Shape& shape : ShapesFor(type())) {
    const TestWeights weights(type(), shape.outputs, shape.columns, 1);
    const std::vector<float> x = RandomFloats(shape.rows * shape.columns, 2);
    const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
    for (size_t i = 0; i < out.size(); ++i) {
      const float* row = &x[i / shape.outputs * shape.columns];
      const ExactDot exact = DotInDouble(numerics_, weights, i % shape.outputs, row);
      ASSERT_LE(std::abs(out[i] - exact.value), exact.bound)
          << shape.rows << " rows, " << shape.outputs << " outputs, " << shape.columns
          << " columns: element " << i;
    }
  }
}

TEST_P(MatmulTest, ProductsAreSummedInTheOrderThatIsStated) {
  for (const Shape& shape : ShapesFor(type())) {
    const TestWeights weights(type(), shape.outputs, shape.columns, 3);
    const std::vector<float> x = RandomFloats(shape.rows * shape.columns, 4);
    const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
    for (size_t i = 0; i < out.size(); ++i) {
      const float* row = &x[i / shape.outputs * shape.columns];
      ASSERT_EQ(out[i], DotInOrder(numerics_, weights, i % shape.outputs, row))
          << shape.rows << " rows, " << shape.outputs << " outputs, " << shape.columns
          << " columns: element " << i;
    }
  }
}

TEST_P(MatmulTest, DenormalsAreNotFlushedToZero) {
  const bool rounds = numerics_.rounds_to_16 && model::InfoOf(type()).block_size > 1;
  const TestWeights weights(type(), 33, 256, 5);
  for (const size_t rows : {1u, 20u}) {
    const std::vector<float> x = RandomFloats(rows * 256, 6, 0x1p-128f);
    const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
    for (size_t i = 0; i < out.size(); ++i) {
      const float* row = &x[i / 33 * 256];
      const ExactDot exact = DotInDouble(numerics_, weights, i % 33, row);
      ASSERT_LE(std::abs(out[i] - exact.value), exact.bound);
      ASSERT_EQ(out[i], DotInOrder(numerics_, weights, i % 33, row));
    }
    const bool some = std::any_of(out.begin(), out.end(), [](float value) {
      return value != 0 && std::abs(value) < std::numeric_limits<float>::min();
    });
    EXPECT_NE(some, rounds) << "rounded activations below 2^-127 are zero";
  }
}

TEST_P(MatmulTest, ARowHasTheSameBitsAloneAndAmongOthersInAnyOrder) {
  constexpr size_t kColumns = 512;
  constexpr size_t kOutputs = 45;
  const TestWeights weights(type(), kOutputs, kColumns, 7);
  const std::vector<float> x = RandomFloats(65 * kColumns, 8);
  const auto row_of = [](const std::vector<float>& all, size_t row, size_t length) {
    const auto begin = all.begin() + static_cast<ptrdiff_t>(row * length);
    return std::vector<float>(begin, begin + static_cast<ptrdiff_t>(length));
  };
  std::mt19937 random(9);
  for (const size_t others : {2u, 7u, 64u}) {
    std::vector<size_t> order(others + 1);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<float> shuffled;
    for (const size_t row : order) {
      const std::vector<float> one = row_of(x, row, kColumns);
      shuffled.insert(shuffled.end(), one.begin(), one.end());
    }
    const std::vector<float> together = Multiplied(pool_, numerics_, weights, shuffled);
    for (size_t i = 0; i < order.size(); ++i) {
      const std::vector<float> alone =
          Multiplied(pool_, numerics_, weights, row_of(x, order[i], kColumns));
      ASSERT_TRUE(SameBits(row_of(together, i, kOutputs), alone))
          << "row " << order[i] << " among " << others << " others, at place " << i;
    }
  }
}

TEST_P(MatmulTest, ThreadsDoNotChangeABit) {
  const TestWeights weights(type(), 300, 256, 10);
  for (const size_t rows : {1u, 5u, 50u, 140u}) {
    const std::vector<float> x = RandomFloats(rows * 256, 11);
    ComputePool one(1, [] {});
    ComputePool several(5, [] {});
    const std::vector<float> want = Multiplied(one, numerics_, weights, x);
    EXPECT_TRUE(SameBits(Multiplied(pool_, numerics_, weights, x), want));
    EXPECT_TRUE(SameBits(Multiplied(several, numerics_, weights, x), want));
  }
}

TEST_P(MatmulTest, NanAndInfinitiesStayInTheirRow) {
  const TestWeights weights(type(), 40, 256, 12);
  for (const size_t rows : {4u, 30u}) {
    const std::vector<float> clean = RandomFloats(rows * 256, 13);
    const std::vector<float> want = Multiplied(pool_, numerics_, weights, clean);
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = clean;
      x[2 * 256 + 100] = value;
      const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
      for (size_t i = 0; i < out.size(); ++i) {
        if (i / 40 == 2) {
          ASSERT_FALSE(std::isfinite(out[i])) << value << " at output " << i % 40;
        } else {
          ASSERT_EQ(out[i], want[i]) << value << " reached row " << i / 40;
        }
      }
    }
  }
}

TEST_P(MatmulTest, ActivationsOfEverySizeKeepWithinTheBound) {
  const TestWeights weights(type(), 33, 256, 19);
  for (const float scale : {0x1p-100f, 0x1p-20f, 1e4f, 0x1p60f}) {
    std::vector<float> x = RandomFloats(256, 20, scale);
    x[7] = scale * 1000;  // its group's others are small beside it
    std::fill_n(x.begin() + 64, 64, 0.0f);
    const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
    for (size_t i = 0; i < out.size(); ++i) {
      const ExactDot exact = DotInDouble(numerics_, weights, i, x.data());
      ASSERT_LE(std::abs(out[i] - exact.value), exact.bound) << "scale " << scale;
      ASSERT_EQ(out[i], DotInOrder(numerics_, weights, i, x.data())) << "scale " << scale;
    }
  }
}

TEST_P(MatmulTest, ActivationsThatRoundBeyondTheLargestCodeAreCut) {
  const TestWeights weights(type(), 33, 256, 21);
  // Divided by its scale, 2^-14, the next number below 2 is 32768 when rounded.
  std::vector<float> x(256, std::nextafter(2.0f, 0.0f));
  for (size_t i = 0; i < x.size(); i += 2) x[i] = -x[i];
  const std::vector<float> out = Multiplied(pool_, numerics_, weights, x);
  for (size_t i = 0; i < out.size(); ++i) {
    const ExactDot exact = DotInDouble(numerics_, weights, i, x.data());
    ASSERT_LE(std::abs(out[i] - exact.value), exact.bound);
    ASSERT_EQ(out[i], DotInOrder(numerics_, weights, i, x.data()));
  }
}

TEST_P(MatmulTest, NothingIsReadBeyondTheWeightsAndTheRows) {
  const TestWeights weights(type(), 40, 256, 22);
  WeightArena arena;
  const auto packed = PackedMatrix::Pack(pool_, arena, weights.tensor(), 0, numerics_);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto guarded = std::make_shared<GuardedMemory>(packed->packed(), packed->bytes());
  const PackedMatrix at_the_end = PackedMatrix::FromPacked(
      type(), 40, 256, std::shared_ptr<const uint8_t>(guarded, guarded->data()));
  for (const size_t rows : {1u, 7u, 20u}) {
    const std::vector<float> values = RandomFloats(rows * 256, 23);
    const GuardedMemory x(values.data(), values.size() * sizeof(float));
    const std::vector<float> nothing(rows * 40, NAN);
    const GuardedMemory out(nothing.data(), nothing.size() * sizeof(float));
    auto* results = reinterpret_cast<float*>(out.data());
    MultiplyScratch scratch;
    Multiply(pool_, scratch, numerics_, reinterpret_cast<const float*>(x.data()), rows,
             {{&at_the_end, results}});
    EXPECT_TRUE(SameBits(std::vector<float>(results, results + nothing.size()),
                         Multiplied(pool_, numerics_, weights, values)));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, MatmulTest,
                         ::testing::Combine(::testing::ValuesIn(AllNumerics()),
                                            ::testing::ValuesIn(AllWeightTypes())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name + "_" + NameOfType(std::get<1>(info.param));
                         });

class MatmulOfType : public ::testing::TestWithParam<WeightType> {};

TEST_P(MatmulOfType, AllSetsOfInstructionsGiveTheSameBits) {
  ComputePool pool(2, [] {});
  size_t sets = 0;
  for (const bool rounds : {true, false}) {
    for (const size_t rows : {1u, 6u, 40u, 140u}) {
      const TestWeights weights(GetParam(), 100, 768, 14);
      const std::vector<float> x = RandomFloats(rows * 768, 15);
      std::vector<float> first;
      sets = 0;
      for (const InstructionSet set : kInstructionSets) {
        if (!MissingFeatures(set).empty()) continue;
        const std::vector<float> out =
            Multiplied(pool, {.id = "", .set = set, .rounds_to_16 = rounds}, weights, x);
        if (sets++ == 0) first = out;
        EXPECT_TRUE(SameBits(out, first)) << NameOf(set) << ", " << rows << " rows";
      }
    }
  }
  if (sets < 2) GTEST_SKIP() << "this processor runs one set";
}

INSTANTIATE_TEST_SUITE_P(Types, MatmulOfType, ::testing::ValuesIn(AllWeightTypes()),
                         [](const auto& info) { return NameOfType(info.param); });

TEST(Multiply, ProductsOfAllTypesShareTheirInput) {
  const std::vector<Numerics> here = NumericsOfThisMachine();
  if (here.empty()) GTEST_SKIP() << "no numerics on this processor";
  ComputePool pool(2, [] {});
  WeightArena arena;
  std::vector<PackedMatrix> matrices;
  std::vector<TestWeights> weights;
  for (const WeightType type : AllWeightTypes()) {
    weights.emplace_back(type, 20 + 7 * weights.size(), 256, 16);
    matrices.push_back(*PackedMatrix::Pack(pool, arena, weights.back().tensor(), 0, here[0]));
  }
  MultiplyScratch scratch;
  for (const size_t rows : {20u, 1u, 7u}) {  // the room grows, then is too large
    const std::vector<float> x = RandomFloats(rows * 256, 17);
    std::vector<std::vector<float>> outs;
    std::vector<Product> products;
    for (const PackedMatrix& matrix : matrices) {
      outs.emplace_back(rows * matrix.rows(), NAN);
      products.push_back({&matrix, outs.back().data()});
    }
    Multiply(pool, scratch, here[0], x.data(), rows, products);
    for (size_t i = 0; i < matrices.size(); ++i) {
      EXPECT_TRUE(SameBits(outs[i], Multiplied(pool, here[0], weights[i], x)))
          << NameOfType(matrices[i].type()) << ", " << rows << " rows";
    }
  }
}

TEST(Multiply, NoRowsAreNoWork) {
  const std::vector<Numerics> here = NumericsOfThisMachine();
  if (here.empty()) GTEST_SKIP() << "no numerics on this processor";
  ComputePool pool(1, [] {});
  const TestWeights weights(WeightType::kQ4_0, 40, 64, 18);
  EXPECT_TRUE(Multiplied(pool, here[0], weights, {}).empty());
}

}  // namespace
}  // namespace kvmesh::shard

// Products against plain sums, through both of their ways, over many shapes and weight types: also
// the check of what the installed oneDNN computes on this processor.
#include "services/shard/engine/weight_matrix.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/shard/engine/torch_gemm.h"

namespace kvmesh::shard {
namespace {

std::vector<float> RandomVector(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// An f32 matrix and the bytes it views.
struct F32Matrix {
  std::vector<float> values;  // [rows, columns]
  std::vector<uint8_t> bytes;
  model::Tensor tensor;

  F32Matrix(size_t rows, size_t columns, uint32_t seed)
      : values(RandomVector(rows * columns, seed)) {
    bytes.resize(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensor = {
        .name = "test", .type = model::WeightType::kF32, .shape = {rows, columns}, .data = bytes};
  }
};

double DotInDouble(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(WeightMatrix, ProductsOfEveryShapeAreRight) {
  ComputePool pool(2, UseTorchOnThisThreadOnly);
  ComputeContext context(pool);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t rows = 1 + random() % (round % 4 == 0 ? 300 : 40);
    const size_t columns = 1 + random() % (round % 5 == 0 ? 1600 : 150);
    const size_t outputs = 1 + random() % 200;
    const F32Matrix weights(outputs, columns, random());
    const std::vector<float> x = RandomVector(rows * columns, random());
    std::vector<float> out(rows * outputs, NAN);
    const WeightMatrix matrix(weights.tensor, 0);
    Multiply(context, x.data(), rows, {{&matrix, out.data()}});
    for (size_t row = 0; row < rows; ++row) {
      for (size_t j = 0; j < outputs; ++j) {
        const double want = DotInDouble(&x[row * columns], &weights.values[j * columns], columns);
        ASSERT_NEAR(out[row * outputs + j], want, 1e-6 * static_cast<double>(columns))
            << rows << " rows, " << columns << " columns, " << outputs << " outputs";
      }
    }
  }
}

TEST(WeightMatrix, SeveralProductsShareTheirInput) {
  ComputePool pool(2, UseTorchOnThisThreadOnly);
  ComputeContext context(pool);
  const F32Matrix first(70, 48, 1);
  const F32Matrix second(33, 48, 2);
  const WeightMatrix a(first.tensor, 0);
  const WeightMatrix b(second.tensor, 0);
  for (const size_t rows : {1u, 16u, 17u, 64u}) {
    const std::vector<float> x = RandomVector(rows * 48, 3);
    std::vector<float> out_a(rows * 70);
    std::vector<float> out_b(rows * 33);
    Multiply(context, x.data(), rows, {{&a, out_a.data()}, {&b, out_b.data()}});
    EXPECT_NEAR(out_a.back(), DotInDouble(&x[(rows - 1) * 48], &first.values[69 * 48], 48), 1e-5);
    EXPECT_NEAR(out_b.back(), DotInDouble(&x[(rows - 1) * 48], &second.values[32 * 48], 48), 1e-5);
  }
}

TEST(WeightMatrix, ThreadsDoNotChangeABit) {
  const F32Matrix weights(300, 96, 4);
  const WeightMatrix matrix(weights.tensor, 0);
  for (const size_t rows : {3u, 100u}) {
    const std::vector<float> x = RandomVector(rows * 96, 5);
    std::vector<std::vector<float>> outs;
    for (const uint32_t threads : {1u, 2u, 5u}) {
      ComputePool pool(threads, UseTorchOnThisThreadOnly);
      ComputeContext context(pool);
      outs.emplace_back(rows * 300);
      Multiply(context, x.data(), rows, {{&matrix, outs.back().data()}});
    }
    EXPECT_EQ(outs[0], outs[1]);
    EXPECT_EQ(outs[0], outs[2]);
  }
}

TEST(WeightMatrix, InterleavedHeadsAreReadInHalfLayout) {
  F32Matrix weights(8, 1, 6);  // two heads of four rows
  weights.tensor.rope_interleaved = true;
  const WeightMatrix matrix(weights.tensor, 4);
  const size_t stored[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (size_t row = 0; row < 8; ++row) {
    float got = 0;
    matrix.WidenRow(row, &got);
    EXPECT_EQ(got, weights.values[stored[row]]) << row;
  }
}

TEST(WeightMatrix, QuantisedRowsAreWidenedAsTheModelWidensThem) {
  std::mt19937 random(7);
  for (const model::WeightType type :
       {model::WeightType::kQ4_1, model::WeightType::kQ6_K, model::WeightType::kBF16}) {
    const model::WeightTypeInfo& info = model::InfoOf(type);
    std::vector<uint8_t> bytes(3 * 256 / info.block_size * info.block_bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % 64);
    const model::Tensor tensor{.name = "test", .type = type, .shape = {3, 256}, .data = bytes};
    std::vector<float> all(3 * 256);
    model::Dequantize(type, bytes, absl::MakeSpan(all));
    const WeightMatrix matrix(tensor, 0);
    std::vector<float> row(256);
    matrix.WidenRow(1, row.data());
    EXPECT_EQ(row, std::vector<float>(all.begin() + 256, all.begin() + 512))
        << std::string(info.name);
  }
}

}  // namespace
}  // namespace kvmesh::shard

// libtorch's products against plain sums, over many shapes and weight types: also
// the check of what the installed oneDNN computes on this processor.
#include "services/shard/engine/weight_matrix.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/shard/engine/torch_linear.h"

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

at::Tensor Rows(const std::vector<float>& values, size_t rows) {
  return at::tensor(values).view({static_cast<int64_t>(rows), -1});
}

TEST(TorchLinear, ProductsOfEveryShapeAreRight) {
  ComputePool pool(2, UseTorchOnThisThreadOnly);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t rows = 1 + random() % (round % 4 == 0 ? 300 : 40);
    const size_t columns = 1 + random() % (round % 5 == 0 ? 1600 : 150);
    const size_t outputs = 1 + random() % 200;
    const F32Matrix weights(outputs, columns, random());
    const std::vector<float> x = RandomVector(rows * columns, random());
    const at::Tensor out = Linear(pool, Rows(x, rows), WeightMatrix(weights.tensor, 0));
    for (size_t row = 0; row < rows; ++row) {
      for (size_t j = 0; j < outputs; ++j) {
        const double want = DotInDouble(&x[row * columns], &weights.values[j * columns], columns);
        ASSERT_NEAR(out.data_ptr<float>()[row * outputs + j], want,
                    1e-6 * static_cast<double>(columns))
            << rows << " rows, " << columns << " columns, " << outputs << " outputs";
      }
    }
  }
}

TEST(TorchLinear, ThreadsDoNotChangeABit) {
  const F32Matrix weights(300, 96, 4);
  const WeightMatrix matrix(weights.tensor, 0);
  for (const size_t rows : {3u, 100u}) {
    const at::Tensor x = Rows(RandomVector(rows * 96, 5), rows);
    ComputePool one(1, UseTorchOnThisThreadOnly);
    const at::Tensor want = Linear(one, x, matrix);
    for (const uint32_t threads : {2u, 5u}) {
      ComputePool pool(threads, UseTorchOnThisThreadOnly);
      EXPECT_TRUE(at::equal(Linear(pool, x, matrix), want)) << threads << " threads";
    }
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

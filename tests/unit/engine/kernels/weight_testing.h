// Weights of every type for tests, and the value that each of them stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/weights.h"

namespace kvmesh::shard {

// All of model::WeightType.
std::vector<model::WeightType> AllWeightTypes();

// So that gtest names a parameter after its type.
std::string NameOfType(model::WeightType type);

// A matrix of a model, with bytes of its own.
class TestWeights {
 public:
  // Any codes, and scales between 2^-9 and 2^-5 of either sign, so that no sum overflows.
  TestWeights(model::WeightType type, size_t rows, size_t columns, uint32_t seed);

  // Any bytes at all: NaN, infinite and denormal scales as well.
  static TestWeights AnyBytes(model::WeightType type, size_t rows, size_t columns, uint32_t seed);

  const model::Tensor& tensor() const { return tensor_; }
  model::Tensor& tensor() { return tensor_; }
  size_t rows() const { return tensor_.shape[0]; }
  size_t columns() const { return tensor_.shape[1]; }
  const uint8_t* stored_row(size_t row) const { return bytes_.data() + row * tensor_.row_bytes(); }
  std::vector<float> WidenedRow(size_t row) const;  // by model::Dequantize

  TestWeights(TestWeights&&) = default;

 private:
  TestWeights() = default;
  void Fill(model::WeightType type, size_t rows, size_t columns, uint32_t seed);
  void TameHalves(uint32_t seed);

  std::vector<uint8_t> bytes_;
  model::Tensor tensor_;
};

}  // namespace kvmesh::shard

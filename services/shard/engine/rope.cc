#include "services/shard/engine/rope.h"

#include <cmath>
#include <numbers>

namespace kvmesh::shard {
namespace {

// Llama 3's frequency-dependent scaling: transformers' _compute_llama3_parameters.
float ScaleLlama3(const model::RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength > static_cast<float>(rope.original_context / rope.low_freq_factor)) {
    return frequency / factor;
  }
  if (wavelength < static_cast<float>(rope.original_context / rope.high_freq_factor)) {
    return frequency;
  }
  const float smooth = (static_cast<float>(rope.original_context) / wavelength -
                        static_cast<float>(rope.low_freq_factor)) /
                       static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> RopeFrequencies(const model::RopeConfig& rope) {
  std::vector<float> frequencies(rope.dims / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.dims);
    const float frequency = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    switch (rope.scaling) {
      case model::RopeScaling::kNone:
        frequencies[i] = frequency;
        break;
      case model::RopeScaling::kLinear:
        frequencies[i] = frequency / static_cast<float>(rope.factor);
        break;
      case model::RopeScaling::kLlama3:
        frequencies[i] = ScaleLlama3(rope, frequency);
        break;
    }
    if (i < rope.freq_factors.size()) frequencies[i] /= rope.freq_factors[i];
  }
  return frequencies;
}

void RopeAngles(const std::vector<float>& frequencies, uint64_t position, float* cos_sin) {
  const size_t half = frequencies.size();
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    cos_sin[i] = static_cast<float>(std::cos(angle));
    cos_sin[half + i] = static_cast<float>(std::sin(angle));
  }
}

void RotateHeads(const float* cos_sin, size_t half, size_t heads, size_t head_dim, float* x) {
  for (size_t head = 0; head < heads; ++head, x += head_dim) {
    for (size_t i = 0; i < half; ++i) {
      const float first = x[i];
      const float second = x[i + half];
      x[i] = first * cos_sin[i] - second * cos_sin[half + i];
      x[i + half] = second * cos_sin[i] + first * cos_sin[half + i];
    }
  }
}

}  // namespace kvmesh::shard

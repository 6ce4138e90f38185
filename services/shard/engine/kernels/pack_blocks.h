// Blocks of quantised weights on their way between a model file and a panel: fields taken apart. A
// block goes in and comes out without losing a bit of what counts. Pure; thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/model/weights.h"
#include "services/shard/engine/kernels/panel_layout.h"

namespace kvmesh::shard {

struct BlockFields {
  static constexpr size_t kBlockMax = 256;
  static constexpr size_t kGroupsMax = 16;

  uint16_t d = 0;                               // half precision
  uint16_t m = 0;                               // half precision, of types with minima
  std::array<uint8_t, kGroupsMax> scales = {};  // codes, of types that have some
  std::array<uint8_t, kGroupsMax> mins = {};
  std::array<uint8_t, kBlockMax> codes = {};
};

// `stored`: one block of the quantised `type`, as in the file.
void ReadStoredBlock(model::WeightType type, const uint8_t* stored, BlockFields& fields);

// Into place `lane` of the 32 of a panel's block of the quantised `type`; zeros are there before.
void StorePanelBlock(model::WeightType type, const BlockFields& fields, size_t lane,
                     uint8_t* block);
// And out of it again.
void LoadPanelBlock(const PanelLayout& layout, const uint8_t* block, size_t lane,
                    BlockFields& fields);

// Scale of a group, and minimum if the type has minima; exact.
float GroupScale(const PanelLayout& layout, const BlockFields& fields, size_t group);
float GroupMin(const PanelLayout& layout, const BlockFields& fields, size_t group);

// What the scale is multiplied with.
float CodeValue(const PanelLayout& layout, uint8_t code);

// The value of an IEEE half; exact.
float HalfToFloat(uint16_t half);

}  // namespace kvmesh::shard

// What the checkpoints of the toy model are filed under.
#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/forward/frames.h"
#include "tests/testing/toy_engine.h"

namespace kvmesh::shard {

inline WriteId Write(uint8_t number) {
  WriteId id;
  id.mutable_data()[0] = number;
  return id;
}

inline forward::CacheNamespace ToyNamespace() {
  return {.model_fp = Sha256Of("toy model"),
          .quant = testing::kToyQuant,
          .ctx_params_hash = Sha256Of("toy params")};
}

}  // namespace kvmesh::shard

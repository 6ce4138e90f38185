// What a hop is and how much it may take: fixed for the life of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/job.h"
#include "services/shard/core/session_store.h"

namespace kvmesh::shard {

struct HopOptions {
  InstanceId instance;
  LayerRange layers;
  uint32_t layer_count = 0;  // of the whole model
  uint32_t hidden_size = 0;
  uint32_t vocab_size = 0;
  uint32_t context_length = 0;  // tokens
  std::string quant;
  std::vector<std::string> features;
  bool caching = true;  // false: every stateful frame is a cache miss
  uint32_t streams_max = 256;
  absl::Duration stream_idle_max = absl::Seconds(600);  // without a frame or an answer
  absl::Duration close_wait_max = absl::Seconds(30);    // for the next hop to end after Close
  StoreLimits store;
  CheckpointOptions checkpoints;
  const Vocabulary* vocabulary = nullptr;  // with checkpoints; outlives the hop
  // Whether this shard may dial the address. Called inside OnFrame; must not block.
  std::function<bool(const std::string& address)> peer_allowed;
};

}  // namespace kvmesh::shard

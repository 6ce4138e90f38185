// The command line's part of checkpoints.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

#include "services/shard/grpc/shard_server.h"

namespace kvmesh::shard {

struct CheckpointFlags {
  bool off = false;
  std::string meta;
  std::string stores = "*";
  uint64_t save_inflight_bytes_max = CheckpointOptions{}.save_inflight_bytes_max;
  double evict_save_timeout_seconds = 2;
  double save_timeout_seconds = 30;
  double restore_timeout_seconds = 10;
  uint32_t min_tokens = SlabFacts{}.min_tokens;
  uint32_t align_tokens = SlabFacts{}.align_tokens;
};

void AddCheckpointFlags(CLI::App& app, CheckpointFlags& flags);

// Puts what the flags say into the options of a server.
void Apply(const CheckpointFlags& flags, ShardServerOptions* options);

}  // namespace kvmesh::shard

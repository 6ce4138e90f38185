#include "services/shard/grpc/checkpoint_flags.h"

#include "common/rpc/flags.h"

namespace kvmesh::shard {

void AddCheckpointFlags(CLI::App& app, CheckpointFlags& flags) {
  app.add_flag("--no-checkpoints", flags.off, "Save and restore no checkpoints");
  app.add_option("--meta", flags.meta,
                 "Address of the arbiter, HOST:PORT: sessions that this shard gives up are then "
                 "saved as fragments")
      ->check(rpc::Address());
  app.add_option(
         "--stores", flags.stores,
         "Stores that this shard may call, whoever names them: as --peers; *.DOMAIN allows every "
         "name with one more label. \"*\" allows any address")
      ->capture_default_str();
  app.add_option("--save-inflight-bytes-max", flags.save_inflight_bytes_max,
                 "Most bytes of snapshots that are being stored; saves beyond it are dropped")
      ->capture_default_str()
      ->check(rpc::WholeNumber(1));
  app.add_option("--evict-save-timeout", flags.evict_save_timeout_seconds,
                 "Seconds that a newcomer waits at most while the session it pushes out is saved")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 60.0));
  app.add_option("--save-timeout", flags.save_timeout_seconds,
                 "Seconds within which a slab must be stored")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  app.add_option("--restore-timeout", flags.restore_timeout_seconds,
                 "Seconds within which stored state must be read")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  app.add_option("--min-tokens", flags.min_tokens,
                 "Shorter states are neither saved nor cut points; the same at every shard")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--boundary-align-tokens", flags.align_tokens,
                 "Cut points stand at multiples of so many tokens; the same at every shard")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
}

void Apply(const CheckpointFlags& flags, ShardServerOptions* options) {
  CheckpointOptions& checkpoints = options->checkpoints;
  checkpoints.enabled = !flags.off;
  checkpoints.fragments = checkpoints.enabled && !flags.meta.empty();
  checkpoints.save_inflight_bytes_max = flags.save_inflight_bytes_max;
  checkpoints.evict_save_timeout = absl::Seconds(flags.evict_save_timeout_seconds);
  checkpoints.save_timeout = absl::Seconds(flags.save_timeout_seconds);
  checkpoints.restore_timeout = absl::Seconds(flags.restore_timeout_seconds);
  checkpoints.min_tokens = flags.min_tokens;
  options->meta_address = flags.meta;
  options->stores = rpc::SplitNames(flags.stores);
  options->align_tokens = flags.align_tokens;
}

}  // namespace kvmesh::shard

// kvmesh-meta: the arbiter of stored state as a process.
#include <glog/logging.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/rpc/flags.h"
#include "common/rpc/process.h"
#include "services/meta/grpc/meta_codec.h"
#include "services/meta/grpc/meta_server.h"

namespace kvmesh::meta {
namespace {

struct Flags {
  rpc::ServiceFlags service;
  MetaServerOptions meta;
  std::vector<std::string> tier_policy;
  double lease_ttl_s = 30;
  double reservation_ttl_s = 60;
  double fragment_ttl_s = 600;
  double store_silence_s = 15;
};

void AddSeconds(CLI::App& app, const std::string& name, double& seconds, const std::string& help) {
  app.add_option(name, seconds, help)->capture_default_str()->check(CLI::Range(0.05, 86400.0));
}

void AddFlags(CLI::App& app, Flags& flags) {
  ArbiterLimits& limits = flags.meta.loop.arbiter.limits;
  flags.service.role = rpc::Role::kMeta;
  rpc::AddServiceFlags(app, flags.service);
  app.add_option("--tier-policy", flags.tier_policy,
                 "REASON=TIER[,TIER...]: where saves of this reason go, the first tier with room; "
                 "reasons are cold, continued, finish, evict, shutdown; may be repeated")
      ->allow_extra_args(false);
  AddSeconds(app, "--lease-ttl-seconds", flags.lease_ttl_s,
             "A row stays pinned for so long after its reader was heard of");
  AddSeconds(app, "--reservation-ttl-seconds", flags.reservation_ttl_s,
             "A write is given up when nothing was heard of it for so long");
  AddSeconds(app, "--fragment-ttl-seconds", flags.fragment_ttl_s,
             "What one shard saved alone is kept for so long");
  AddSeconds(app, "--store-silence-seconds", flags.store_silence_s,
             "A store that says nothing for so long is lost");
  app.add_option("--high-watermark", limits.high_watermark,
                 "Share of a store's budget above which rows are evicted")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--low-watermark", limits.low_watermark, "Share that is left after that")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--queue-max", flags.meta.loop.queue_max,
                 "Commands that may wait; more are refused with a retry delay")
      ->capture_default_str()
      ->check(rpc::WholeNumber(1, 1 << 20));
}

std::vector<Tier>* TiersOf(absl::string_view reason, TierPolicy* policy) {
  if (reason == "cold") return &policy->cold;
  if (reason == "continued") return &policy->continued;
  if (reason == "finish") return &policy->finish;
  if (reason == "evict") return &policy->evict;
  if (reason == "shutdown") return &policy->shutdown;
  return nullptr;
}

// InvalidArgument: names the value that is wrong.
absl::Status SetTierPolicy(const std::string& setting, TierPolicy* policy) {
  const std::vector<std::string> sides = absl::StrSplit(setting, absl::MaxSplits('=', 1));
  std::vector<Tier>* tiers = TiersOf(sides[0], policy);
  if (tiers == nullptr || sides.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tier-policy: \"", setting, "\" is not REASON=TIER[,TIER...]"));
  }
  tiers->clear();
  for (const absl::string_view name : absl::StrSplit(sides[1], ',')) {
    const std::optional<Tier> tier = TierFromName(name);
    if (!tier) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tier-policy: \"", name, "\" is none of ram, ram_file, disk"));
    }
    tiers->push_back(*tier);
  }
  return absl::OkStatus();
}

absl::Status Finish(Flags& flags) {
  ArbiterOptions& arbiter = flags.meta.loop.arbiter;
  for (const std::string& setting : flags.tier_policy) {
    KVMESH_RETURN_IF_ERROR(SetTierPolicy(setting, &arbiter.tiers));
  }
  if (arbiter.limits.low_watermark > arbiter.limits.high_watermark) {
    return absl::InvalidArgumentError(
        absl::StrCat("--low-watermark is ", arbiter.limits.low_watermark,
                     ", above --high-watermark, ", arbiter.limits.high_watermark));
  }
  arbiter.limits.lease_ttl = absl::Seconds(flags.lease_ttl_s);
  arbiter.limits.reservation_ttl = absl::Seconds(flags.reservation_ttl_s);
  arbiter.limits.fragment_ttl = absl::Seconds(flags.fragment_ttl_s);
  arbiter.limits.store_silence_max = absl::Seconds(flags.store_silence_s);
  arbiter.incarnation_id = RandomId<InstanceId>();
  flags.meta.server = rpc::ServerOptionsFrom(flags.service);
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "kvmesh-meta: %s\n", std::string(status.message()).c_str());
  return code;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("kvmesh-meta: decides which stored state there is, and what is given up");
  AddFlags(app, flags);
  if (const auto code = rpc::ParseFlags(app, argc, argv, &flags.service)) return *code;
  if (const absl::Status finished = Finish(flags); !finished.ok()) {
    return Fail(finished, rpc::kExitUsage);
  }
  rpc::InitService(argv[0], flags.service);

  const MonotonicClock clock;
  auto meta = MetaServer::Start(flags.meta, clock);
  if (!meta.ok()) return Fail(meta.status(), rpc::kExitUnavailable);
  if (const absl::Status ready = rpc::WriteReadyFile(flags.service, (*meta)->server());
      !ready.ok()) {
    return Fail(ready, rpc::kExitFailed);
  }
  LOG(INFO) << "serving on port " << (*meta)->port();
  const int signal = rpc::WaitForTermination();
  LOG(INFO) << "signal " << signal << ": draining";
  (*meta)->Shutdown(absl::Seconds(flags.service.drain_seconds));
  return rpc::kExitDone;
}

}  // namespace
}  // namespace kvmesh::meta

int main(int argc, char** argv) {
  return kvmesh::meta::Main(argc, argv);
}

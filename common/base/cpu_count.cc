#include "common/base/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvmesh {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint32_t AffinityCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

// The process's own group, "/a/b", in cgroup v2; empty when there is none.
std::string CgroupPath() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "0::")) return std::string(rest);
  }
  return "";
}

// The tightest quota from the process's group up to the root.
std::optional<uint32_t> CgroupQuota() {
  std::optional<uint32_t> tightest;
  const auto take = [&](std::optional<uint32_t> quota) {
    if (quota.has_value()) tightest = std::min(tightest.value_or(*quota), *quota);
  };
  std::string group = CgroupPath();
  while (true) {
    take(CpuQuota(FirstLine(absl::StrCat("/sys/fs/cgroup", group, "/cpu.max"))));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) break;
    group.resize(slash);
  }
  const std::string v1 = "/sys/fs/cgroup/cpu/cpu.cfs_";
  take(CpuQuota(absl::StrCat(FirstLine(v1 + "quota_us"), " ", FirstLine(v1 + "period_us"))));
  return tightest;
}

}  // namespace

std::optional<uint32_t> CpuQuota(absl::string_view cpu_max) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), absl::MaxSplits(' ', 1));
  int64_t quota = 0;
  int64_t period = 0;
  if (!absl::SimpleAtoi(parts.first, &quota) || !absl::SimpleAtoi(parts.second, &period)) {
    return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  const int64_t cpus = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<uint32_t>(std::min<int64_t>(cpus, 1 << 16));
}

uint32_t UsableCpuCount() {
  const uint32_t affinity = AffinityCount();
  return std::max(1u, std::min(affinity, CgroupQuota().value_or(affinity)));
}

}  // namespace kvmesh

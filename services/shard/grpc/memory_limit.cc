#include "services/shard/grpc/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvmesh::shard {
namespace {

uint64_t LimitInFile(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return MemoryLimit(line);
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

}  // namespace

uint64_t MemoryLimit(absl::string_view text) {
  uint64_t bytes = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes) ? bytes : 0;
}

uint64_t UsableMemoryBytes() {
  uint64_t least = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                   static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGE_SIZE)));
  const auto take = [&least](uint64_t limit) {
    if (limit > 0 && (least == 0 || limit < least)) least = limit;
  };
  std::string group = CgroupPath();
  while (true) {
    take(LimitInFile(absl::StrCat("/sys/fs/cgroup", group, "/memory.max")));
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) break;
    group.resize(slash);
  }
  take(LimitInFile("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  return least;
}

}  // namespace kvmesh::shard

#include "tools/kvmesh/local_tiers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

constexpr char kShm[] = "/dev/shm";
constexpr uint64_t kBudgetMin = 16 << 20;
constexpr uint64_t kBudgetMax = uint64_t{64} << 30;

// What is free, at most; a control group may allow less, and then its word counts where the
// process is told to stop.
uint64_t AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  while (std::getline(in, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kib = 0;
    if (words.size() >= 2 && words[0] == "MemAvailable:" && absl::SimpleAtoi(words[1], &kib)) {
      return kib << 10;
    }
  }
  return 0;
}

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(folder, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;  // gone meanwhile
    const uint64_t size = it->is_regular_file(ignored) ? it->file_size(ignored) : 0;
    if (!ignored) bytes += size;
  }
  return bytes;
}

// Half of what the medium of `folder` has for this mesh.
absl::StatusOr<uint64_t> FileBudget(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot create ", folder, ": ", error.message()));
  }
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("no room known at ", folder, ": ", error.message()));
  }
  return std::min<uint64_t>((space.available + BytesIn(folder)) / 2, kBudgetMax);
}

std::string SharedMemoryFolder(const std::string& data_dir) {
  return absl::StrCat(kShm, "/kvmesh-", getuid(), "-", Sha256Of(data_dir).ToHex().substr(0, 16));
}

absl::StatusOr<LocalTier> PlanTier(const std::string& tier, const std::string& data_dir) {
  LocalTier plan{.tier = tier};
  if (tier == "ram") {
    plan.budget_bytes = std::min(AvailableMemory() / 8, kBudgetMax);
  } else if (tier == "ram_file") {
    std::error_code ignored;
    if (!std::filesystem::is_directory(kShm, ignored)) return plan;
    plan.folder = SharedMemoryFolder(data_dir);
    KVMESH_ASSIGN_OR_RETURN(plan.budget_bytes, FileBudget(plan.folder));
    // The files are memory, too.
    plan.budget_bytes = std::min(plan.budget_bytes, (AvailableMemory() + BytesIn(plan.folder)) / 4);
  } else {
    plan.folder = absl::StrCat(data_dir, "/disk");
    KVMESH_ASSIGN_OR_RETURN(plan.budget_bytes, FileBudget(plan.folder));
  }
  return plan;
}

// The tiers of a reason to save, in order: the first `usual` are kvmesh-meta's own.
struct ReasonTiers {
  const char* reason;
  std::array<const char*, 3> tiers;
  size_t usual;
};
constexpr ReasonTiers kReasonTiers[] = {{"cold", {"ram_file", "disk", "ram"}, 2},
                                        {"continued", {"ram", "ram_file", "disk"}, 1},
                                        {"finish", {"disk", "ram_file", "ram"}, 2},
                                        // Memory is what an evicted session is to give back.
                                        {"evict", {"ram_file", "disk", "ram"}, 1},
                                        {"shutdown", {"disk", "ram_file", "ram"}, 1}};

}  // namespace

absl::StatusOr<std::vector<LocalTier>> PlanLocalTiers(const std::vector<std::string>& tiers,
                                                      const std::string& data_dir) {
  std::vector<LocalTier> plans;
  for (const std::string& tier : tiers) {
    if (tier != "ram" && tier != "ram_file" && tier != "disk") {
      return absl::InvalidArgumentError(
          absl::StrCat("--tiers: '", tier, "' is none of ram, ram_file, disk"));
    }
    if (std::count(tiers.begin(), tiers.end(), tier) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("--tiers names ", tier, " twice"));
    }
    KVMESH_ASSIGN_OR_RETURN(LocalTier plan, PlanTier(tier, data_dir));
    if (plan.budget_bytes >= kBudgetMin) {
      plans.push_back(std::move(plan));
    } else {
      Progress(absl::StrCat("no tier ", tier, ": only ", plan.budget_bytes >> 20,
                            " MiB would be its share"));
    }
  }
  return plans;
}

std::vector<std::string> LocalTierPolicy(const std::vector<LocalTier>& tiers,
                                         const std::vector<std::string>& settings) {
  std::vector<std::string> policy = settings;
  for (const ReasonTiers& one : kReasonTiers) {
    const bool is_set = std::any_of(settings.begin(), settings.end(), [&one](const auto& setting) {
      return absl::StartsWith(setting, absl::StrCat(one.reason, "="));
    });
    std::vector<const char*> there;
    bool usual = false;
    for (size_t i = 0; i < one.tiers.size(); ++i) {
      if (std::none_of(tiers.begin(), tiers.end(),
                       [&](const LocalTier& tier) { return tier.tier == one.tiers[i]; })) {
        continue;
      }
      usual |= i < one.usual;
      there.push_back(one.tiers[i]);
    }
    if (is_set || usual || there.empty()) continue;
    policy.push_back(absl::StrCat(one.reason, "=", absl::StrJoin(there, ",")));
  }
  return policy;
}

}  // namespace kvmesh::cli

#include "services/shard/engine/numerics.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvmesh::shard {
namespace {

constexpr absl::string_view kFma32 = "fma32";

std::string Known() {
  std::vector<std::string> names = {std::string(kFma32)};
  for (const InstructionSet set : kInstructionSets) {
    names.push_back(absl::StrCat(kFma32, ":", NameOf(set)));
  }
  return absl::StrJoin(names, ", ");
}

absl::Status Lacks(absl::string_view name, InstructionSet set, const CpuFeatures& cpu) {
  return absl::FailedPreconditionError(absl::StrCat("numerics \"", name, "\" needs ",
                                                    absl::StrJoin(MissingFeatures(set, cpu), ", "),
                                                    ", which this processor lacks"));
}

}  // namespace

std::vector<Numerics> NumericsOfThisMachine(const CpuFeatures& cpu) {
  std::vector<Numerics> found;
  for (const InstructionSet set : kInstructionSets) {
    if (MissingFeatures(set, cpu).empty()) found = {{.id = std::string(kFma32), .set = set}};
  }
  return found;
}

absl::StatusOr<Numerics> NumericsNamed(absl::string_view name, const CpuFeatures& cpu) {
  if (name.empty() || name == kFma32) {
    std::vector<Numerics> found = NumericsOfThisMachine(cpu);
    if (found.empty()) return Lacks(kFma32, kInstructionSets[0], cpu);
    return std::move(found.front());
  }
  for (const InstructionSet set : kInstructionSets) {
    if (name != absl::StrCat(kFma32, ":", NameOf(set))) continue;
    if (!MissingFeatures(set, cpu).empty()) return Lacks(name, set, cpu);
    return Numerics{.id = std::string(kFma32), .set = set};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("numerics \"", name, "\" is not known; known are ", Known()));
}

}  // namespace kvmesh::shard

#include "services/shard/engine/numerics.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvmesh::shard {
namespace {

struct Id {
  absl::string_view name;
  bool rounds_to_16;
};

// The default first.
constexpr Id kIds[] = {{"round16", true}, {"fma32", false}};

Numerics Make(const Id& id, InstructionSet set) {
  return {.id = std::string(id.name), .set = set, .rounds_to_16 = id.rounds_to_16};
}

// The fastest set that the processor has; the slowest of all, if it has none.
InstructionSet BestSet(const CpuFeatures& cpu) {
  InstructionSet best = kInstructionSets[0];
  for (const InstructionSet set : kInstructionSets) {
    if (MissingFeatures(set, cpu).empty()) best = set;
  }
  return best;
}

std::string KnownNames() {
  std::vector<std::string> names;
  for (const Id& id : kIds) {
    names.emplace_back(id.name);
    for (const InstructionSet set : kInstructionSets) {
      names.push_back(absl::StrCat(id.name, ":", NameOf(set)));
    }
  }
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<Numerics> Checked(absl::string_view name, const Id& id, InstructionSet set,
                                 const CpuFeatures& cpu) {
  const std::vector<std::string> missing = MissingFeatures(set, cpu);
  if (missing.empty()) return Make(id, set);
  return absl::FailedPreconditionError(absl::StrCat("numerics \"", name, "\" needs ",
                                                    absl::StrJoin(missing, ", "),
                                                    ", which this processor lacks"));
}

}  // namespace

std::vector<Numerics> NumericsOfThisMachine(const CpuFeatures& cpu) {
  std::vector<Numerics> found;
  const InstructionSet set = BestSet(cpu);
  if (!MissingFeatures(set, cpu).empty()) return found;
  for (const Id& id : kIds) found.push_back(Make(id, set));
  return found;
}

absl::StatusOr<Numerics> NumericsNamed(absl::string_view name, const CpuFeatures& cpu) {
  for (const Id& id : kIds) {
    if (name == id.name || (name.empty() && &id == &kIds[0])) {
      return Checked(id.name, id, BestSet(cpu), cpu);
    }
    for (const InstructionSet set : kInstructionSets) {
      if (name == absl::StrCat(id.name, ":", NameOf(set))) return Checked(name, id, set, cpu);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("numerics \"", name, "\" is not known; known are ", KnownNames()));
}

}  // namespace kvmesh::shard

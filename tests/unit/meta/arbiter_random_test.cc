// The arbiter and the reference model go through the same random commands; after each, what came
// out and the whole state must be equal. A run is a function of its seed; one that fails is
// shortened to few commands and printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "tests/unit/meta/index_follower.h"
#include "tests/unit/meta/random_commands.h"
#include "tests/unit/meta/reference_model.h"

namespace kvmesh::meta::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 60;
#else
constexpr uint64_t kSeeds = 1000;
#endif
constexpr size_t kCommandsPerSeed = 1000;

ArbiterLimits SmallLimits() {
  return {.leases_max = 12, .reservations_max = 10, .waiters_max = 6, .step_slabs = 1024};
}

// Lines of one that the other has not, both ways.
std::string Difference(absl::string_view what, const std::vector<std::string>& wanted,
                       const std::vector<std::string>& got) {
  if (wanted == got) return "";
  std::vector<std::string> missing;
  std::vector<std::string> surplus;
  absl::c_set_difference(wanted, got, std::back_inserter(missing));
  absl::c_set_difference(got, wanted, std::back_inserter(surplus));
  return absl::StrCat(what, "\n  wanted:\n    ", absl::StrJoin(missing, "\n    "), "\n  got:\n    ",
                      absl::StrJoin(surplus, "\n    "), "\n");
}

class Pair {
 public:
  Pair()
      : arbiter_({.incarnation_id = IdOf<InstanceId>(500), .limits = SmallLimits()}),
        model_(IdOf<InstanceId>(500), TierPolicy(), SmallLimits()) {}

  // What differs; empty: nothing.
  std::string Apply(const Step& step) {
    now_ += step.after;
    if (const auto* hit = std::get_if<RowHit>(&step.command);
        hit != nullptr && !follower_.HasRow(*hit)) {
      return "";  // made for another list of commands
    }
    const std::vector<Effect> effects = arbiter_.Apply(step.command, now_);
    std::string wrong = follower_.Follow(effects);
    if (!wrong.empty()) return wrong;
    const std::vector<std::string> expected = model_.Apply(step.command, now_, effects);
    wrong = Difference("effects", expected, ReferenceModel::Spell(effects));
    if (!wrong.empty()) return wrong;
    wrong = Difference("state", model_.State(), State());
    if (!wrong.empty()) return wrong;
    wrong = Difference("budgets", {}, model_.broken_budgets());
    if (!wrong.empty()) return wrong;
    if (arbiter_.NextTimer() <= now_) return "a timer that is due was not run";
    return "";
  }

  const Arbiter& arbiter() const { return arbiter_; }
  MonoTime now() const { return now_; }

 private:
  std::vector<std::string> State() const {
    std::vector<std::string> lines = follower_.State();
    for (const RowSnapshot& row :
         arbiter_.ListRows(std::nullopt, 10000, {.rows_only = false}, now_)) {
      std::vector<std::string> slabs;
      for (const PlacedSlab& slab : row.slabs) {
        slabs.push_back(absl::StrCat(Describe(slab.name), "@", NumberOf(slab.store), " ",
                                     ToString(slab.state), " ", slab.size_bytes / kPageBytes));
      }
      absl::c_sort(slabs);
      std::string line = absl::StrCat(ToString(row.state), " k", NumberOf(row.key), " leases ",
                                      row.leases, " hits ", row.hit_count, " used ",
                                      absl::ToInt64Milliseconds(now_ - row.idle));
      for (const std::string& slab : slabs) absl::StrAppend(&line, " | ", slab);
      lines.push_back(std::move(line));
    }
    for (const StoreSnapshot& store : arbiter_.Stores()) {
      lines.push_back(absl::StrCat("store ", NumberOf(store.uid), " ", ToString(store.state),
                                   " live ", store.live_bytes, " reserved ", store.reserved_bytes,
                                   " deleting ", store.deleting_bytes, " quarantined ",
                                   store.quarantined_bytes));
    }
    for (const ReservationSnapshot& it : arbiter_.ListReservations(0, 10000, now_)) {
      lines.push_back(absl::StrCat("reservation w", NumberOf(it.write_id), " ends ",
                                   absl::FormatDuration(now_ + it.expires_in)));
    }
    const ArbiterCounts counts = arbiter_.Counts();
    lines.push_back(absl::StrCat("leases ", counts.leases, " waiters ", counts.waiters));
    absl::c_sort(lines);
    return lines;
  }

  Arbiter arbiter_;
  ReferenceModel model_;
  IndexFollower follower_;
  MonoTime now_ = absl::Seconds(5000);
};

std::string Run(const std::vector<Step>& steps) {
  Pair pair;
  for (const Step& step : steps) {
    if (std::string wrong = pair.Apply(step); !wrong.empty()) return wrong;
  }
  return "";
}

// Leaves out what the failure does not need, in ever smaller pieces.
std::vector<Step> Shortened(std::vector<Step> steps) {
  for (size_t piece = std::max<size_t>(steps.size() / 2, 1);;
       piece = std::max<size_t>(piece / 2, 1)) {
    bool shorter = false;
    for (size_t begin = 0; begin < steps.size();) {
      std::vector<Step> rest(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(begin));
      const size_t end = std::min(begin + piece, steps.size());
      rest.insert(rest.end(), steps.begin() + static_cast<ptrdiff_t>(end), steps.end());
      if (Run(rest).empty()) {
        begin = end;
      } else {
        steps = std::move(rest);
        shorter = true;
      }
    }
    if (piece == 1 && !shorter) return steps;
  }
}

// Empty: nothing differed.
std::string RunSeed(uint64_t seed) {
  RandomCommands commands(seed);
  Pair pair;
  std::vector<Step> steps;
  steps.reserve(kCommandsPerSeed);
  for (const Step& step : commands.Opening()) {
    steps.push_back(step);
    pair.Apply(step);
  }
  while (steps.size() < kCommandsPerSeed) {
    steps.push_back(commands.Next(pair.arbiter(), pair.now()));
    if (pair.Apply(steps.back()).empty()) continue;
    const std::vector<Step> few = Shortened(steps);
    std::string story;
    for (const Step& step : few) absl::StrAppend(&story, Describe(step), "\n");
    return absl::StrCat(few.size(), " commands:\n", story, Run(few));
  }
  return "";
}

TEST(ArbiterAgainstReferenceModel, EveryEffectAndStateIsEqualAfterEachOfAMillionCommands) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string wrong = RunSeed(seed);
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
  std::cout << kSeeds * kCommandsPerSeed << " commands ran\n";
}

}  // namespace
}  // namespace kvmesh::meta::testing

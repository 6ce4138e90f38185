// Random clusters: each run is a function of its seed, which a failure prints.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/sim/meta/cluster.h"

namespace kvmesh::meta::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 600;
#else
constexpr uint64_t kSeeds = 10000;
#endif
constexpr uint64_t kQuietSeeds = kSeeds / 10;

void Add(const ClusterStats& one, ClusterStats* all) {
  all->granted += one.granted;
  all->refused_reservations += one.refused_reservations;
  all->checkouts += one.checkouts;
  all->rows_opened += one.rows_opened;
  all->deletes += one.deletes;
  all->arbiter_restarts += one.arbiter_restarts;
}

TEST(ClusterOfStores, KeepsItsPromisesUnderRandomFaultsAndLeavesNothingBehind) {
  ClusterStats all;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Cluster cluster({.seed = seed});
    ASSERT_EQ(cluster.Run(), "") << "seed " << seed;
    Add(cluster.stats(), &all);
  }
  std::cout << kSeeds << " seeds: " << all.granted << " writes granted, "
            << all.refused_reservations << " refused, " << all.checkouts << " checkouts, "
            << all.rows_opened << " rows opened, " << all.deletes << " deletes, "
            << all.arbiter_restarts << " restarts of the arbiter\n";
  // Else it has shown nothing.
  EXPECT_GT(all.checkouts, kSeeds);
  EXPECT_GT(all.deletes, kSeeds);
  EXPECT_GT(all.arbiter_restarts, kSeeds / 4);
}

TEST(ClusterOfStores, NoStoreRefusesAWriteThatWasGrantedWhenNothingFails) {
  ClusterStats all;
  for (uint64_t seed = 1; seed <= kQuietSeeds; ++seed) {
    Cluster cluster({.seed = seed, .faults = false});
    ASSERT_EQ(cluster.Run(), "") << "seed " << seed;
    ASSERT_EQ(cluster.refused_puts(), 0U) << "seed " << seed;
    Add(cluster.stats(), &all);
  }
  EXPECT_GT(all.deletes, kQuietSeeds);
}

}  // namespace
}  // namespace kvmesh::meta::sim

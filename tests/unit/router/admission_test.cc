#include "services/router/core/admission.h"

#include <gtest/gtest.h>

#include "common/base/error_info.h"

namespace kvmesh::router {
namespace {

SessionId Id(uint8_t n) {
  SessionId id;
  id.mutable_data()[0] = n;
  return id;
}

TEST(AdmissionQueue, RunsUpToTheMaximumThenQueuesThenRefusesWithADelay) {
  AdmissionQueue queue(/*running_max=*/2, /*queue_max=*/1);
  EXPECT_EQ(*queue.Enter(Id(1)), AdmissionQueue::Place::kRunning);
  EXPECT_EQ(*queue.Enter(Id(2)), AdmissionQueue::Place::kRunning);
  EXPECT_EQ(*queue.Enter(Id(3)), AdmissionQueue::Place::kQueued);
  const absl::Status refused = queue.Enter(Id(4)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), reason::kQueueFull);
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
}

TEST(AdmissionQueue, TheOneThatWaitedLongestComesNext) {
  AdmissionQueue queue(1, 3);
  for (uint8_t n = 1; n <= 4; ++n) ASSERT_TRUE(queue.Enter(Id(n)).ok());
  EXPECT_EQ(queue.Leave(Id(1)), Id(2));
  EXPECT_EQ(queue.Leave(Id(2)), Id(3));
  EXPECT_EQ(queue.running(), 1u);
  EXPECT_EQ(queue.queued(), 1u);
}

TEST(AdmissionQueue, OneThatLeavesTheQueueTakesNobodysPlace) {
  AdmissionQueue queue(1, 3);
  for (uint8_t n = 1; n <= 3; ++n) ASSERT_TRUE(queue.Enter(Id(n)).ok());
  EXPECT_EQ(queue.Leave(Id(2)), std::nullopt);
  EXPECT_EQ(queue.Leave(Id(9)), std::nullopt);
  EXPECT_EQ(queue.Leave(Id(1)), Id(3));
  EXPECT_EQ(queue.Leave(Id(3)), std::nullopt);
  EXPECT_EQ(queue.running() + queue.queued(), 0u);
}

}  // namespace
}  // namespace kvmesh::router

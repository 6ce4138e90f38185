#include <gtest/gtest.h>

#include <string>

#include "common/base/error_info.h"
#include "services/blob/core/back_off.h"
#include "services/blob/core/incarnation.h"
#include "services/blob/core/store_news.h"

namespace kvmesh::blob {
namespace {

Incarnation Of(uint64_t number, char id) {
  return {.number = number, .id = *IncarnationId::FromBytes(std::string(16, id), "id")};
}

TEST(Incarnation, AStoreObeysTheHighestItHasSeenAndNoSecondOneOfThatNumber) {
  EXPECT_TRUE(CheckIncarnation(std::nullopt, Of(0, 'a')).ok());
  EXPECT_TRUE(CheckIncarnation(Of(5, 'a'), Of(5, 'a')).ok());
  EXPECT_TRUE(CheckIncarnation(Of(5, 'a'), Of(6, 'b')).ok());
  EXPECT_TRUE(CheckIncarnation(Of(5, 'a'), Of(6, 'a')).ok());
  for (const Incarnation& stale : {Of(4, 'a'), Of(4, 'b'), Of(5, 'b'), Of(0, 'a')}) {
    const absl::Status refused = CheckIncarnation(Of(5, 'a'), stale);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ReasonOf(refused), "STALE_INCARNATION");
    EXPECT_NE(std::string(refused.message()).find(stale.id.ToHex()), std::string::npos);
  }
}

TEST(BackOff, DoublesUpToItsLimitIsSpreadAndStartsAgain) {
  BackOff back_off(absl::Milliseconds(100), absl::Milliseconds(350));
  const double most = 1;
  EXPECT_EQ(back_off.Next(most), absl::Milliseconds(100));
  EXPECT_EQ(back_off.Next(0), absl::Milliseconds(100));  // half of 200
  EXPECT_EQ(back_off.Next(most), absl::Milliseconds(350));
  EXPECT_EQ(back_off.Next(most), absl::Milliseconds(350));
  back_off.Reset();
  EXPECT_EQ(back_off.Next(most), absl::Milliseconds(100));
}

TEST(NewsQueue, KeepsTheOrderAndSaysWhenItCouldNotKeepAll) {
  NewsQueue queue(2);
  EXPECT_FALSE(queue.Pop().has_value());
  queue.Push(SlabText{.request = 1});
  queue.Push(SlabText{.request = 2});
  EXPECT_FALSE(queue.overflowed());
  EXPECT_EQ(std::get<SlabText>(*queue.Pop()).request, 1U);
  queue.Push(SlabText{.request = 3});
  queue.Push(SlabText{.request = 4});
  EXPECT_TRUE(queue.overflowed());
  EXPECT_EQ(std::get<SlabText>(*queue.Pop()).request, 2U);
  queue.Push(SlabText{.request = 5});  // a gap before it: not kept
  EXPECT_EQ(std::get<SlabText>(*queue.Pop()).request, 3U);
  EXPECT_TRUE(queue.empty());
  queue.Clear();
  EXPECT_FALSE(queue.overflowed());
}

}  // namespace
}  // namespace kvmesh::blob

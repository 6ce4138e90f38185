#include "common/base/error_info.h"

#include <gtest/gtest.h>

namespace kvmesh {
namespace {

TEST(ErrorInfo, IsReadBackAndReplacesAnEarlierOne) {
  absl::Status status =
      WithErrorInfo(absl::AbortedError("x"), {.reason = "A", .metadata = {{"k", "v"}}});
  status = WithErrorInfo(status, {.reason = "B", .metadata = {{"hop", "1"}}});
  EXPECT_EQ(*ErrorInfoOf(status), (ErrorInfo{.reason = "B", .metadata = {{"hop", "1"}}}));
  EXPECT_EQ(ReasonOf(status), "B");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
}

TEST(ErrorInfo, AStatusWithoutOneHasNone) {
  EXPECT_FALSE(ErrorInfoOf(absl::AbortedError("x")).has_value());
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
  EXPECT_TRUE(WithErrorInfo(absl::OkStatus(), {.reason = "A"}).ok());
}

TEST(ErrorInfo, BytesThatAreNotUtf8DoNotThrow) {
  const absl::Status status =
      WithErrorInfo(absl::AbortedError("x"), {.reason = "A", .metadata = {{"k", "\xff\xfe"}}});
  EXPECT_EQ(ReasonOf(status), "A");
}

TEST(RetryDelay, IsReadBackInMilliseconds) {
  const absl::Status status =
      WithRetryDelay(absl::ResourceExhaustedError("x"), absl::Milliseconds(1500));
  EXPECT_EQ(*RetryDelayOf(status), absl::Milliseconds(1500));
  EXPECT_FALSE(RetryDelayOf(absl::ResourceExhaustedError("x")).has_value());
}

}  // namespace
}  // namespace kvmesh

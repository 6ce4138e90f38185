#include "common/rpc/status_bridge.h"

#include <gtest/gtest.h>

#include "common/base/error_info.h"
#include "common/base/limits.h"

namespace kvmesh::rpc {
namespace {

TEST(StatusBridge, CodeMessageReasonAndDelayCrossBothWays) {
  absl::Status status =
      WithErrorInfo(absl::ResourceExhaustedError("no room"),
                    {.reason = "NO_ROOM", .metadata = {{"hop", "1"}, {"held", "8"}}});
  status = WithRetryDelay(status, absl::Milliseconds(2250));
  const absl::Status back = FromGrpc(ToGrpc(status));
  EXPECT_EQ(back.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(back.message(), "no room");
  EXPECT_EQ(*ErrorInfoOf(back), *ErrorInfoOf(status));
  EXPECT_EQ(*RetryDelayOf(back), absl::Milliseconds(2250));
}

TEST(StatusBridge, EveryCodeHasAName) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "m");
    EXPECT_EQ(FromGrpc(ToGrpc(status)).code(), static_cast<absl::StatusCode>(code));
    EXPECT_FALSE(CodeName(static_cast<grpc::StatusCode>(code)).empty());
  }
  EXPECT_EQ(CodeName(grpc::StatusCode::FAILED_PRECONDITION), "FAILED_PRECONDITION");
  EXPECT_EQ(CodeName(static_cast<grpc::StatusCode>(99)), "UNKNOWN");
}

TEST(StatusBridge, AHugeStatusStaysUnderTheLimitAndKeepsItsReason) {
  const absl::Status status =
      WithErrorInfo(absl::AbortedError(std::string(100000, 'x')),
                    {.reason = "CACHE_MISS", .metadata = {{"cause", std::string(100000, 'y')}}});
  const grpc::Status wire = ToGrpc(status);
  EXPECT_LE(wire.error_message().size() + wire.error_details().size(), limits::kStatusBytesMax);
  EXPECT_EQ(ReasonOf(FromGrpc(wire)), "CACHE_MISS");
}

TEST(StatusBridge, BytesThatAreNotTextAreReplaced) {
  const grpc::Status wire =
      ToGrpc(WithErrorInfo(absl::InternalError("a\xff\x01z"), {.reason = "R\xfe"}));
  EXPECT_EQ(wire.error_message(), "a??z");
  EXPECT_EQ(ReasonOf(FromGrpc(wire)).substr(0, 2), "R?");
}

TEST(StatusBridge, ForeignOrTornDetailsAreIgnored) {
  EXPECT_EQ(ReasonOf(FromGrpc(grpc::Status(grpc::StatusCode::ABORTED, "m", "\xff\xff torn"))), "");
}

}  // namespace
}  // namespace kvmesh::rpc

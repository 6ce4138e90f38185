#include "common/base/ids.h"

#include <gtest/gtest.h>

#include <set>

namespace kvmesh {
namespace {

TEST(Hex, EveryByteComesBackAndIsLowerCase) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string hex = HexEncode(bytes);
  EXPECT_EQ(hex.substr(0, 6), "000102");
  EXPECT_EQ(hex.substr(510), "ff");
  EXPECT_EQ(*HexDecode(hex), bytes);
  EXPECT_EQ(*HexDecode("AbCd"), "\xab\xcd");
}

TEST(Hex, AnOddLengthOrAWrongDigitIsRefusedWithItsPosition) {
  EXPECT_EQ(HexDecode("abc").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status wrong = HexDecode("ab0g").status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.message().find("position 3"), absl::string_view::npos) << wrong;
}

TEST(ByteId, TakesExactlyItsLengthAndNamesTheFieldOtherwise) {
  EXPECT_TRUE(SessionId::FromBytes(std::string(16, 'x'), "open.session_id").ok());
  for (size_t length : {0u, 15u, 17u}) {
    const absl::Status status =
        SessionId::FromBytes(std::string(length, 'x'), "open.session_id").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("open.session_id"), absl::string_view::npos);
  }
}

TEST(ByteId, HexAndBytesNameTheSameId) {
  const SessionId id = *SessionId::FromHex("000102030405060708090a0b0c0d0e0f", "id");
  EXPECT_EQ(id.bytes()[15], '\x0f');
  EXPECT_EQ(id.ToHex(), "000102030405060708090a0b0c0d0e0f");
  EXPECT_FALSE(id.is_zero());
  EXPECT_TRUE(SessionId().is_zero());
  EXPECT_FALSE(SessionId::FromHex("0001", "id").ok());
}

TEST(ByteId, RandomIdsDiffer) {
  std::set<SessionId> seen;
  for (int i = 0; i < 100; ++i) seen.insert(RandomId<SessionId>());
  EXPECT_EQ(seen.size(), 100u);
}

}  // namespace
}  // namespace kvmesh

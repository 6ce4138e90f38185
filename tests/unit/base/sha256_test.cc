#include "common/base/sha256.h"

#include <gtest/gtest.h>

namespace kvmesh {
namespace {

TEST(Sha256, KnownAnswersOfFips180) {
  EXPECT_EQ(Sha256Of("").ToHex(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Of("abc").ToHex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, ACopyGoesOnFromTheStateOfItsOriginal) {
  Sha256 running;
  running.Update("ab");
  Sha256 copy = running;
  copy.Update("c");
  EXPECT_EQ(copy.Digest(), Sha256Of("abc"));
  EXPECT_EQ(running.Digest(), Sha256Of("ab"));
  running.Update("c");
  EXPECT_EQ(running.Digest(), Sha256Of("abc"));
}

TEST(Sha256, TokensAreFourBytesLittleEndianEach) {
  EXPECT_EQ(TokensSha256({}), Sha256Of(""));
  EXPECT_EQ(TokensSha256({1, 0x04030201}), Sha256Of(absl::string_view("\1\0\0\0\1\2\3\4", 8)));
}

TEST(Sha256, APrefixDigestIsTheFirstEightBytesLittleEndian) {
  Sha256Digest digest;
  for (int i = 0; i < 8; ++i) digest.mutable_data()[i] = static_cast<uint8_t>(i + 1);
  EXPECT_EQ(PrefixDigest(digest), 0x0807060504030201u);
}

}  // namespace
}  // namespace kvmesh

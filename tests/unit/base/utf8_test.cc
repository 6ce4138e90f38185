#include "common/base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

TEST(IsUtf8, TakesBothEndsOfEveryLength) {
  for (const char* good :
       {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc3\xa9\xf0\x9f\x98\x80"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  EXPECT_TRUE(IsUtf8(absl::string_view("\0", 1)));
}

TEST(IsUtf8, RefusesWhatLiesJustBeyondThem) {
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

TEST(IsUtf8, RefusesACharacterThatIsCutShort) {
  for (const char* bad : {"\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xe2\x28\xa1", "\xf0\x9f\x28\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
    EXPECT_FALSE(IsUtf8(std::string("fine ") + bad + " fine"));
  }
}

}  // namespace
}  // namespace kvmesh

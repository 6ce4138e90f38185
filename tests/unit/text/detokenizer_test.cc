// The detokeniser beyond the goldens: text must not depend on where tokens are cut.
#include "common/text/detokenizer.h"

#include "gtest/gtest.h"

namespace kvmesh::text {
namespace {

constexpr char kBad[] = "\xEF\xBF\xBD";

std::string DecodeInPieces(const std::string& bytes, size_t piece_bytes) {
  Utf8Stream stream;
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    text += stream.Push(bytes.substr(at, piece_bytes));
  }
  return text + stream.Flush();
}

TEST(Utf8Stream, ACharacterComesOutWithItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, BytesThatCannotBecomeACharacterAreNotHeld) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("\xED\xA0"), std::string(kBad) + kBad);
  EXPECT_EQ(stream.Push("\xF4\x90"), std::string(kBad) + kBad);
  EXPECT_EQ(stream.Push("\xE0\x80"), std::string(kBad) + kBad);
  EXPECT_EQ(stream.Push("\xC0"), kBad);
  EXPECT_EQ(stream.Push("\xF5"), kBad);
  EXPECT_EQ(stream.Push("\xE2\x82"), "");
  EXPECT_EQ(stream.Push("\xE2\x82"), kBad);
  EXPECT_EQ(stream.Flush(), kBad);
  EXPECT_EQ(stream.Flush(), "");
}

TEST(Utf8Stream, TheCutsDoNotMatter) {
  const std::string bytes =
      "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x99\xF0\x9F\xC3\xFFz\x80\xE2\x28\xED\x9F\xBF\xEE\x80";
  const std::string whole = DecodeInPieces(bytes, bytes.size());
  for (size_t piece_bytes = 1; piece_bytes < bytes.size(); ++piece_bytes) {
    EXPECT_EQ(DecodeInPieces(bytes, piece_bytes), whole) << piece_bytes;
  }
}

TEST(StopMatcher, TheFirstToBeCompleteWinsAndOfTheseTheLongest) {
  StopMatcher matcher({"", "cde", "bcd", "abcd", "zz"});
  const StopMatcher::Result result = matcher.Push("xabcdezz");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "x");
  EXPECT_EQ(result.stop_string, "abcd");
}

TEST(StopMatcher, NothingFollowsAStop) {
  StopMatcher matcher({"."});
  EXPECT_EQ(matcher.Push("a.b").text, "a");
  EXPECT_EQ(matcher.Push("c").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, OnlyTheLongestPossibleBeginningIsHeld) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Push("xaaa").text, "xa");
  EXPECT_EQ(matcher.Push("c").text, "aac");
  EXPECT_EQ(matcher.Push("a").text, "");
  EXPECT_EQ(matcher.Flush(), "a");
}

TEST(StopMatcher, WithoutStopStringsTextPasses) {
  StopMatcher matcher({""});
  const StopMatcher::Result result = matcher.Push("anything");
  EXPECT_EQ(result.text, "anything");
  EXPECT_FALSE(result.stopped);
}

}  // namespace
}  // namespace kvmesh::text

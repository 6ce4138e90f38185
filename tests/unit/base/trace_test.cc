#include "common/base/trace.h"

#include <gtest/gtest.h>

#include <set>

namespace kvmesh {
namespace {

// The example of the standard.
constexpr char kHeader[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(Traceparent, TheStandardsExampleIsReadAndWritten) {
  const auto trace = ParseTraceparent(kHeader);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(trace->span_id, "b7ad6b7169203331");
  EXPECT_TRUE(trace->sampled);
  EXPECT_EQ(trace->ToTraceparent(), kHeader);
  EXPECT_EQ(Trace().ToTraceparent(), "");
}

TEST(Traceparent, OnlyTheLastFlagSaysSampled) {
  const std::string base(kHeader, sizeof(kHeader) - 3);
  EXPECT_FALSE(ParseTraceparent(base + "00")->sampled);
  EXPECT_FALSE(ParseTraceparent(base + "fe")->sampled);
  EXPECT_TRUE(ParseTraceparent(base + "ff")->sampled);
  EXPECT_TRUE(ParseTraceparent(base + "0b")->sampled);
}

TEST(Traceparent, LaterVersionsAreReadAsFarAsTheyAreKnown) {
  const std::string later = "01" + std::string(kHeader).substr(2);
  EXPECT_TRUE(ParseTraceparent(later).has_value());
  EXPECT_TRUE(ParseTraceparent(later + "-more").has_value());
  EXPECT_FALSE(ParseTraceparent(later + "more").has_value());
  EXPECT_FALSE(ParseTraceparent(std::string(kHeader) + "-more").has_value());
  EXPECT_FALSE(ParseTraceparent("ff" + std::string(kHeader).substr(2)).has_value());
}

TEST(Traceparent, WhatIsMalformedCountsAsNone) {
  const std::string good = kHeader;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char wrong : {'g', 'A', ' ', '\0', good[i] == '-' ? '0' : '-'}) {
      std::string bad = good;
      bad[i] = wrong;
      EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad;
    }
    EXPECT_FALSE(ParseTraceparent(good.substr(0, i)).has_value());
  }
  EXPECT_FALSE(ParseTraceparent("00-" + std::string(32, '0') + "-b7ad6b7169203331-01").has_value());
  EXPECT_FALSE(
      ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01").has_value());
}

TEST(Trace, ChildrenOfOneParentDifferByNameAndNumberAndStayInItsTrace) {
  const Trace parent = *ParseTraceparent(kHeader);
  std::set<std::string> ids = {parent.span_id};
  for (const char* name : {"forward", "put"}) {
    for (uint64_t number = 0; number < 3; ++number) {
      const Trace child = ChildOf(parent, name, number);
      EXPECT_EQ(child.trace_id, parent.trace_id);
      EXPECT_TRUE(child.sampled);
      EXPECT_TRUE(ParseTraceparent(child.ToTraceparent()).has_value());
      EXPECT_TRUE(ids.insert(child.span_id).second);
    }
  }
  EXPECT_EQ(ChildOf(parent, "put", 2).span_id, ChildOf(parent, "put", 2).span_id);
  EXPECT_FALSE(ChildOf(Trace(), "put").exists());
}

TEST(Trace, ANewOneIsNotSampled) {
  const Trace trace = NewTrace(std::string(24, '\x5a'));
  EXPECT_EQ(trace.ToTraceparent(), "00-5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a-5a5a5a5a5a5a5a5a-00");
}

}  // namespace
}  // namespace kvmesh

#include "common/rpc/flags.h"

#include <gtest/gtest.h>

#include <string>

namespace kvmesh::rpc {
namespace {

TEST(CheckAddress, TakesAHostAndAPortOrASocketFile) {
  for (const char* good : {"127.0.0.1:1", "shards.svc:65535", "[::1]:7000", "unix:/tmp/x"}) {
    EXPECT_TRUE(CheckAddress(good).ok()) << good;
  }
}

TEST(CheckAddress, RefusesWhatNobodyCanDialAndShowsIt) {
  for (const char* bad : {"", ":1", "host", "host:", "host:0", "host:65536", "host:-1", "host:http",
                          "::1", "::1:7000", "unix:"}) {
    const absl::Status status = CheckAddress(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(std::string(status.message()).find(bad), std::string::npos) << status;
  }
}

// What a flag with this check makes of `text`: empty when it is taken.
std::string Parse(const CLI::Validator& check, const std::string& text) {
  CLI::App app;
  uint64_t value = 0;
  app.add_option("--number", value)->check(check);
  try {
    app.parse("--number=" + text);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(WholeNumber, TakesBothEndsAndNothingBeyond) {
  EXPECT_EQ(Parse(WholeNumber(1, 9), "1"), "");
  EXPECT_EQ(Parse(WholeNumber(1, 9), "9"), "");
  EXPECT_NE(Parse(WholeNumber(1, 9), "0"), "");
  EXPECT_NE(Parse(WholeNumber(1, 9), "10"), "");
  EXPECT_EQ(Parse(WholeNumber(0), "18446744073709551615"), "");
}

TEST(WholeNumber, NamesTheFlagTheValueAndTheLimits) {
  for (const char* bad : {"-1", "abc", "1.5", "18446744073709551616", "1e3"}) {
    const std::string error = Parse(WholeNumber(0), bad);
    EXPECT_NE(error.find("--number"), std::string::npos) << bad;
    EXPECT_NE(error.find("\"" + std::string(bad) + "\" is not a whole number from 0 to "),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace kvmesh::rpc

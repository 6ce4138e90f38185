// The goldens of text/detok: streamed text of token ids, and stop strings.
#include "common/base/hex.h"
#include "common/text/detokenizer.h"
#include "gtest/gtest.h"
#include "tests/unit/text/text_fixtures.h"

namespace kvmesh::text {
namespace {

void RunDetokCase(const Json& test_case, const Tokenizer& tokenizer) {
  const auto ids = test_case["ids"].get<std::vector<uint32_t>>();
  const auto bytes_hex = test_case["bytes_hex"].get<std::vector<std::string>>();
  const auto chunks = test_case["chunks"].get<std::vector<std::string>>();
  const bool skip_special = test_case["skip_special_tokens"].get<bool>();
  Utf8Stream stream;
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool skipped = skip_special && tokenizer.IsControl(ids[i]);
    const absl::string_view bytes = skipped ? "" : tokenizer.TokenBytes(ids[i]);
    EXPECT_EQ(HexEncode(bytes), bytes_hex[i]) << "id " << ids[i];
    const std::string emitted = stream.Push(bytes);
    EXPECT_EQ(emitted, chunks[i]) << "token " << i;
    text += emitted;
  }
  const std::string rest = stream.Flush();
  EXPECT_EQ(rest, test_case["flush"].get<std::string>());
  EXPECT_EQ(text + rest, test_case["text"].get<std::string>());
}

TEST(TextGolden, Detokenize) {
  RunGoldens("detok", [](const std::filesystem::path& path) -> size_t {
    const Json golden = ReadJson(path);
    if (!golden.contains("tokenizer")) return 0;  // a file of stop strings
    const auto tokenizer = LoadFixtureTokenizer(golden["tokenizer"].get<std::string>());
    if (tokenizer == nullptr) return 0;
    return RunCases(golden, [&](const Json& test_case) { RunDetokCase(test_case, *tokenizer); });
  });
}

void RunStopCase(const Json& test_case) {
  const auto pieces = test_case["pieces_hex"].get<std::vector<std::string>>();
  const auto chunks = test_case["chunks"].get<std::vector<std::string>>();
  Utf8Stream stream;
  StopMatcher matcher(test_case["stop"].get<std::vector<std::string>>());
  StopMatcher::Result result;
  std::string text;
  std::string rest;
  size_t consumed = 0;
  while (consumed < pieces.size() && !result.stopped) {
    const absl::StatusOr<std::string> bytes = HexDecode(pieces[consumed]);
    ASSERT_TRUE(bytes.ok());
    result = matcher.Push(stream.Push(*bytes));
    ASSERT_LT(consumed, chunks.size());
    EXPECT_EQ(result.text, chunks[consumed]) << "token " << consumed;
    text += result.text;
    ++consumed;
  }
  if (!result.stopped) {
    result = matcher.Push(stream.Flush());
    rest = result.text + matcher.Flush();
  }
  EXPECT_EQ(consumed, test_case["tokens_consumed"].get<size_t>());
  EXPECT_EQ(rest, test_case["flush"].get<std::string>());
  EXPECT_EQ(text + rest, test_case["text"].get<std::string>());
  EXPECT_EQ(result.stopped, !test_case["stop_string"].is_null());
  if (result.stopped) {
    EXPECT_EQ(result.stop_string, test_case["stop_string"].get<std::string>());
  }
  const std::string reason =
      result.stopped || test_case["end_of_tokens"] == "eos" ? "stop" : "length";
  EXPECT_EQ(reason, test_case["finish_reason"].get<std::string>());
}

TEST(TextGolden, StopStrings) {
  RunGoldens("detok", [](const std::filesystem::path& path) -> size_t {
    const Json golden = ReadJson(path);
    return golden.contains("tokenizer") ? 0 : RunCases(golden, RunStopCase);
  });
}

}  // namespace
}  // namespace kvmesh::text

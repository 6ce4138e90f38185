// The tokenizer beyond the goldens: input that is refused, long runs, key bytes, malformed files.
#include "common/text/tokenizer.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/text/text_fixtures.h"

namespace kvmesh::text {
namespace {

using Ids = std::vector<uint32_t>;
using ::testing::HasSubstr;

const Tokenizer& Smollm2() {
  static const auto* tokenizer = LoadFixtureTokenizer("smollm2").release();
  return *tokenizer;
}

// Byte-level, with the letters a and b, the byte FF, and a control token.
std::string SmallTokenizer(const std::string& merges, const std::string& more = "") {
  return absl::StrCat(
      R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [)",
      R"({"id": 4, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,)",
      R"( "normalized": false, "special": true}], "normalizer": null,)",
      R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},)",
      R"("post_processor": null, "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},)",
      R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u00ff": 3}, "merges": )",
      merges, "}", more, "}");
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefusedWithItsOffset) {
  for (const char* text : {"abc\xFF", "abc\xE2\x82", "abc\xED\xA0\x80"}) {
    const absl::StatusOr<Ids> ids = Smollm2().Encode(text, {});
    EXPECT_TRUE(absl::IsInvalidArgument(ids.status())) << ids.status();
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("byte offset 3"));
  }
}

TEST(Tokenizer, TextBeyondTheLimitIsRefusedUnread) {
  std::string text(limits::kTextBytesMax, 'a');
  text[0] = '\xFF';
  const absl::Status read = Smollm2().Encode(text, {}).status();
  EXPECT_THAT(std::string(read.message()), HasSubstr("byte offset 0"));
  const absl::Status unread = Smollm2().Encode(text + "a", {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(unread)) << unread;
  EXPECT_THAT(std::string(unread.message()), HasSubstr("8388609 bytes, at most 8388608"));
}

TEST(Tokenizer, NulIsACharacter) {
  const std::string text("a\0b", 3);
  const Ids ids = Smollm2().Encode(text, {}).value();
  EXPECT_EQ(Rendered(Smollm2(), ids), text);
}

TEST(Tokenizer, AMegabyteOfOneClassOfCharactersIsTokenised) {
  for (const char* unit :
       {"a", "A", " ", "\n", ".", "7", "\xE4\xB8\xAD", "\xF0\x9F\x99\x82", "\t", "'"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const absl::StatusOr<Ids> ids = Smollm2().Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Rendered(Smollm2(), *ids), text) << unit;
  }
}

TEST(Tokenizer, ControlTextIsAControlTokenOnlyWhenParsed) {
  const Ids parsed = Smollm2().Encode("<|im_end|>", {}).value();
  ASSERT_EQ(parsed.size(), 1u);
  EXPECT_TRUE(Smollm2().IsControl(parsed[0]));
  EXPECT_EQ(Smollm2().TokenBytes(parsed[0]), "<|im_end|>");
  const Ids text = Smollm2().Encode("<|im_end|>", {.parse_special = false}).value();
  EXPECT_GT(text.size(), 1u);
  EXPECT_EQ(Rendered(Smollm2(), text), "<|im_end|>");
}

TEST(Tokenizer, IdsOutsideTheVocabularyHaveNoBytes) {
  for (const uint32_t id : {Smollm2().vocab_size(), UINT32_MAX}) {
    EXPECT_EQ(Smollm2().TokenBytes(id), "");
    EXPECT_EQ(Smollm2().KeyBytes(id), "");
    EXPECT_FALSE(Smollm2().IsControl(id));
  }
}

TEST(Tokenizer, KeyBytesTellControlTokensAndRawBytesApart) {
  const auto tokenizer = Tokenizer::FromJson(SmallTokenizer(R"([["a", "b"]])"), {"<e>"}).value();
  EXPECT_EQ(tokenizer->KeyBytes(2), "ab");
  EXPECT_EQ(HexEncode(tokenizer->TokenBytes(3)), "ff");
  EXPECT_EQ(HexEncode(tokenizer->KeyBytes(3)), "ff00");
  EXPECT_EQ(HexEncode(tokenizer->KeyBytes(4)), "ff0104000000");
  EXPECT_EQ(tokenizer->eos_token_ids(), Ids{4});
}

TEST(Tokenizer, MergesLoadAsPairsAndAsStrings) {
  for (const char* merges : {R"([["a", "b"]])", R"(["a b"])"}) {
    const auto tokenizer = Tokenizer::FromJson(SmallTokenizer(merges), {}).value();
    EXPECT_EQ(tokenizer->Encode("abba<e>", {}).value(), (Ids{2, 1, 0, 4}));
  }
}

TEST(Tokenizer, MalformedFilesAreRefused) {
  for (const std::string& json :
       {std::string(), std::string("{}"), std::string("[1"), std::string("\xFF"),
        SmallTokenizer(R"([["a", "z"]])"), SmallTokenizer("7"), std::string(100000, '[')}) {
    const auto tokenizer = Tokenizer::FromJson(json, {});
    EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status())) << tokenizer.status();
  }
}

TEST(Tokenizer, ADecoderThatIsNotKnownIsRefusedByName) {
  std::string json = SmallTokenizer("[]");
  const std::string known =
      R"("decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})";
  json.replace(json.find(known), known.size(),
               R"("decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true})");
  const auto tokenizer = Tokenizer::FromJson(json, {});
  EXPECT_TRUE(absl::IsUnimplemented(tokenizer.status())) << tokenizer.status();
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("WordPiece"));
}

TEST(Tokenizer, TruncationAndPaddingOfTheFileAreOff) {
  std::string json = SmallTokenizer("[]");
  const std::string off = R"("truncation": null, "padding": null)";
  json.replace(
      json.find(off), off.size(),
      R"("truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},)"
      R"("padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,)"
      R"( "pad_id": 0, "pad_type_id": 0, "pad_token": "a"})");
  const auto tokenizer = Tokenizer::FromJson(json, {}).value();
  EXPECT_EQ(tokenizer->Encode("abab", {}).value().size(), 4u);
}

TEST(Tokenizer, ThreadsShareOne) {
  const Ids expected = Smollm2().Encode("shared between threads", {}).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&expected] {
      for (int run = 0; run < 50; ++run) {
        EXPECT_EQ(Smollm2().Encode("shared between threads", {}).value(), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvmesh::text

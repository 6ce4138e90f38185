// Tokenizers from GGUF metadata beyond the goldens: what is refused, and which defaults hold.
#include "common/text/gguf_tokenizer.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/text/pre_tokenizers.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh::text {
namespace {

using Ids = std::vector<uint32_t>;
using ::testing::HasSubstr;

// A GGUF file of metadata only.
class GgufBuilder {
 public:
  GgufBuilder& String(const std::string& key, const std::string& value) {
    Begin(key, 8);
    Text(value);
    return *this;
  }
  GgufBuilder& Strings(const std::string& key, const std::vector<std::string>& values) {
    BeginArray(key, 8, values.size());
    for (const std::string& value : values) Text(value);
    return *this;
  }
  GgufBuilder& Ints(const std::string& key, const std::vector<int32_t>& values) {
    BeginArray(key, 5, values.size());
    for (const int32_t value : values) Raw(value);
    return *this;
  }
  GgufBuilder& Floats(const std::string& key, const std::vector<float>& values) {
    BeginArray(key, 6, values.size());
    for (const float value : values) Raw(value);
    return *this;
  }
  GgufBuilder& Uint(const std::string& key, uint32_t value) {
    Begin(key, 4);
    Raw(value);
    return *this;
  }
  GgufBuilder& Bool(const std::string& key, bool value) {
    Begin(key, 7);
    Raw(static_cast<uint8_t>(value));
    return *this;
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    std::string file = "GGUF";
    const uint32_t version = 3;
    const uint64_t tensors = 0;
    file.append(reinterpret_cast<const char*>(&version), 4);
    file.append(reinterpret_cast<const char*>(&tensors), 8);
    file.append(reinterpret_cast<const char*>(&keys_), 8);
    file += body_;
    const auto gguf =
        model::GgufFile::Parse({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
    if (!gguf.ok()) return gguf.status();
    const absl::StatusOr<TokenizerSource> source = TokenizerFromGguf(*gguf);
    if (!source.ok()) return source.status();
    eos_ids = source->eos_ids;
    return Tokenizer::FromJson(source->json, {});
  }

  Ids eos_ids;

 private:
  template <typename T>
  void Raw(T value) {
    body_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(const std::string& text) {
    Raw<uint64_t>(text.size());
    body_ += text;
  }
  void Begin(const std::string& key, uint32_t type) {
    ++keys_;
    Text("tokenizer.ggml." + key);
    Raw(type);
  }
  void BeginArray(const std::string& key, uint32_t element_type, uint64_t count) {
    Begin(key, 9);
    Raw(element_type);
    Raw(count);
  }

  uint64_t keys_ = 0;
  std::string body_;
};

GgufBuilder ByteLevel(const std::string& pre) {
  GgufBuilder builder;
  builder.String("model", "gpt2")
      .String("pre", pre)
      .Strings("tokens", {"a", "b", "ab", "<s>", "</s>"});
  builder.Ints("token_type", {1, 1, 1, 3, 3}).Strings("merges", {"a b"}).Uint("bos_token_id", 3);
  builder.Uint("eos_token_id", 4);
  return builder;
}

GgufBuilder Sentencepiece() {
  constexpr char kSpace[] = "\xE2\x96\x81";
  GgufBuilder builder;
  builder.String("model", "llama");
  builder.Strings("tokens",
                  {"<unk>", "<s>", "<0x41>", kSpace, "b", "c", "bc", absl::StrCat(kSpace, "bc")});
  builder.Ints("token_type", {2, 3, 6, 1, 1, 1, 1, 1})
      .Floats("scores", {0, 0, 0, -3, -4, -5, -1, -2});
  builder.Uint("bos_token_id", 1).Uint("unknown_token_id", 0);
  return builder;
}

void ExpectStatus(GgufBuilder builder, absl::StatusCode code, const std::string& message) {
  const auto tokenizer = builder.Load();
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(message));
}

TEST(GgufTokenizer, AnUnknownKindIsRefusedByName) {
  ExpectStatus(ByteLevel("dolphin\n"), absl::StatusCode::kUnimplemented, "dolphin\\x0a");
  ExpectStatus(GgufBuilder().String("model", "rwkv"), absl::StatusCode::kUnimplemented, "rwkv");
}

TEST(GgufTokenizer, AFileWithoutAVocabularyIsNotFound) {
  ExpectStatus(GgufBuilder(), absl::StatusCode::kNotFound, "tokenizer.ggml.model");
  ExpectStatus(GgufBuilder().String("model", "none"), absl::StatusCode::kNotFound, "none");
}

TEST(GgufTokenizer, MalformedMetadataIsRefusedByKey) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  GgufBuilder base;
  base.String("model", "gpt2").String("pre", "gpt-2");
  ExpectStatus(GgufBuilder(base).Strings("tokens", {"\xFF"}), invalid, "tokens[0] is not UTF-8");
  ExpectStatus(GgufBuilder(base).Strings("tokens", {"a"}).Ints("token_type", {1, 1}), invalid,
               "token_type");
  ExpectStatus(GgufBuilder(base).Strings("tokens", {"a"}).Strings("merges", {"aa"}), invalid,
               "merges[0]");
  ExpectStatus(GgufBuilder(base).Strings("tokens", {"a"}).Strings("merges", {"a z"}), invalid, "");
  ExpectStatus(
      GgufBuilder(base).Strings("tokens", {"a"}).Strings("merges", {}).Uint("eos_token_id", 1),
      invalid, "eos_token_id");
  ExpectStatus(GgufBuilder().String("model", "llama").Strings("tokens", {"a"}).Floats("scores", {}),
               invalid, "scores");
}

TEST(GgufTokenizer, BosIsAddedByTheKindUnlessTheFileSaysOtherwise) {
  const EncodeOptions special = {.add_special = true};
  EXPECT_EQ(ByteLevel("smollm").Load().value()->Encode("ab", special).value(), (Ids{2}));
  EXPECT_EQ(ByteLevel("qwen2").Load().value()->Encode("ab", special).value(), (Ids{2}));
  EXPECT_EQ(ByteLevel("llama-bpe").Load().value()->Encode("ab", special).value(), (Ids{3, 2}));
  EXPECT_EQ(ByteLevel("llama-bpe")
                .Bool("add_bos_token", false)
                .Load()
                .value()
                ->Encode("ab", special)
                .value(),
            (Ids{2}));
  EXPECT_EQ(ByteLevel("smollm")
                .Bool("add_bos_token", true)
                .Bool("add_eos_token", true)
                .Load()
                .value()
                ->Encode("ab", special)
                .value(),
            (Ids{3, 2, 4}));
}

TEST(GgufTokenizer, EndsAreThoseTheFileNames) {
  GgufBuilder builder = ByteLevel("smollm");
  builder.Uint("eot_token_id", 3);
  ASSERT_TRUE(builder.Load().ok());
  EXPECT_EQ(builder.eos_ids, (Ids{4, 3}));
}

TEST(GgufTokenizer, ScoresDecideMergesAndSpacesBecomeTheirMark) {
  const auto tokenizer = Sentencepiece().Load().value();
  EXPECT_EQ(tokenizer->Encode("bc bc", {}).value(), (Ids{7, 7}));
  EXPECT_EQ(tokenizer->TokenBytes(7), " bc");
  EXPECT_EQ(tokenizer->Encode("A", {}).value(), (Ids{3, 2}));
  EXPECT_EQ(tokenizer->TokenBytes(2), "A");
  EXPECT_EQ(tokenizer->Encode("bc", {.add_special = true}).value(), (Ids{1, 7}));
  const auto without_prefix = Sentencepiece().Bool("add_space_prefix", false).Load().value();
  EXPECT_EQ(without_prefix->Encode("bc bc", {}).value(), (Ids{6, 7}));
}

TEST(GgufTokenizer, EveryKnownPreTokenizerCompiles) {
  for (const char* pre :
       {"smollm", "gpt-2", "qwen2", "deepseek-r1-qwen", "qwen35", "llama-bpe", "llama3", "llama-v3",
        "falcon3", "lfm2", "pixtral", "tekken", "gpt-4o", "deepseek-v3"}) {
    const auto tokenizer = ByteLevel(pre).Load();
    ASSERT_TRUE(tokenizer.ok()) << pre << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("abab", {}).value(), (Ids{2, 2})) << pre;
  }
  EXPECT_FALSE(PreTokenizerByName("").has_value());
}

}  // namespace
}  // namespace kvmesh::text

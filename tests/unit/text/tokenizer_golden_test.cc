// The goldens of text/tokenize and text/seams: by each tokenizer.json, and by the GGUF vocabularies
// of the same models.
#include <algorithm>
#include <map>

#include "common/base/hex.h"
#include "common/base/sha256.h"
#include "gtest/gtest.h"
#include "tests/unit/text/text_fixtures.h"

namespace kvmesh::text {
namespace {

using Ids = std::vector<uint32_t>;

std::string TextOf(const Json& test_case) {
  if (test_case.contains("text")) return test_case["text"].get<std::string>();
  std::string text;
  const std::string unit = test_case["text_repeat"]["unit"].get<std::string>();
  for (int i = 0; i < test_case["text_repeat"]["count"].get<int>(); ++i) text += unit;
  return text;
}

void ExpectIds(const Json& test_case, const Ids& ids) {
  EXPECT_EQ(ids.size(), test_case["ids_count"].get<size_t>());
  EXPECT_EQ(TokensSha256(ids).ToHex(), test_case["ids_sha256"].get<std::string>());
  if (test_case.contains("ids")) {
    EXPECT_EQ(ids, test_case["ids"].get<Ids>());
  }
}

void ExpectBytes(const Json& test_case, const Tokenizer& tokenizer, const Ids& ids) {
  if (test_case.contains("bytes_hex")) {
    const auto expected = test_case["bytes_hex"].get<std::vector<std::string>>();
    ASSERT_EQ(ids.size(), expected.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(HexEncode(tokenizer.TokenBytes(ids[i])), expected[i]) << "id " << ids[i];
    }
  }
  const std::string rendered = Rendered(tokenizer, ids);
  EXPECT_EQ(rendered.size(), test_case["rendered_len"].get<size_t>());
  EXPECT_EQ(Sha256Of(rendered).ToHex(), test_case["rendered_sha256"].get<std::string>());
  EXPECT_EQ(rendered == TextOf(test_case), test_case["rendered_equals_text"].get<bool>());
}

void RunTokenizeCase(const Json& test_case, const Tokenizer& tokenizer) {
  const std::string text = TextOf(test_case);
  ASSERT_EQ(Sha256Of(text).ToHex(), test_case["text_sha256"].get<std::string>());
  const absl::StatusOr<Ids> ids = tokenizer.Encode(text, {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  ExpectIds(test_case, *ids);
  ExpectBytes(test_case, tokenizer, *ids);

  Ids with_special = test_case["special_prefix"].get<Ids>();
  with_special.insert(with_special.end(), ids->begin(), ids->end());
  for (const Json& id : test_case["special_suffix"]) with_special.push_back(id.get<uint32_t>());
  const absl::StatusOr<Ids> special = tokenizer.Encode(text, {.add_special = true});
  ASSERT_TRUE(special.ok()) << special.status();
  EXPECT_EQ(*special, with_special);
}

void ExpectBytesWithoutToken(const Json& golden, const Tokenizer& tokenizer) {
  if (golden["model_kind"] != "byte_level_bpe") return;
  std::vector<bool> has_token(256, false);
  for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const absl::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.size() == 1) has_token[static_cast<uint8_t>(bytes[0])] = true;
  }
  std::vector<int> missing;
  for (int byte = 0; byte < 256; ++byte) {
    if (!has_token[byte]) missing.push_back(byte);
  }
  EXPECT_EQ(missing, golden["bytes_without_token"].get<std::vector<int>>());
}

TEST(TextGolden, Tokenize) {
  RunGoldens("tokenize", [](const std::filesystem::path& path) -> size_t {
    const Json golden = ReadJson(path);
    const auto tokenizer = LoadFixtureTokenizer(golden["tokenizer"].get<std::string>());
    if (tokenizer == nullptr) return 0;
    EXPECT_EQ(tokenizer->vocab_size(), golden["vocab_size"].get<uint32_t>());
    ExpectBytesWithoutToken(golden, *tokenizer);
    return RunCases(golden, [&](const Json& test_case) { RunTokenizeCase(test_case, *tokenizer); });
  });
}

// The tokenizer.json that belongs to a GGUF vocabulary. Added tokens may differ: Qwen2's file has
// fewer than Qwen2.5's, so cases with ids beyond its own are left out.
const std::map<std::string, std::string>& GoldenOfGguf() {
  static const auto* names =
      new std::map<std::string, std::string>{{"smollm2-vocab", "smollm2"},
                                             {"ggml-vocab-qwen2", "qwen2_5"},
                                             {"ggml-vocab-phi-3", "phi3_gguf"}};
  return *names;
}

bool Concerns(const Json& test_case, const Tokenizer& gguf, const Tokenizer& reference) {
  const char* field = test_case.contains("ids") ? "ids" : "ids_head";
  const Ids ids = test_case[field].get<Ids>();
  return std::all_of(ids.begin(), ids.end(),
                     [&](uint32_t id) { return gguf.TokenBytes(id) == reference.TokenBytes(id); });
}

// How many cases of the golden of `reference` a GGUF vocabulary was held against.
size_t RunGgufCases(const Json& golden, const Tokenizer& gguf, const Tokenizer& reference) {
  size_t left_out = 0;
  const size_t all = RunCases(golden, [&](const Json& test_case) {
    if (!Concerns(test_case, gguf, reference)) {
      ++left_out;
      return;
    }
    const absl::StatusOr<Ids> ids = gguf.Encode(TextOf(test_case), {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    ExpectIds(test_case, *ids);
    ExpectBytes(test_case, gguf, *ids);
  });
  EXPECT_LE(left_out, 8u);
  return all - left_out;
}

TEST(TextGolden, TokenizeFromGguf) {
  RunGoldens("gguf", [](const std::filesystem::path& path) -> size_t {
    const std::string file = path.filename().string();
    const std::string name = file.substr(0, file.find(".gguf"));
    const auto gguf = LoadFixtureGguf(name);
    const auto golden_name = GoldenOfGguf().find(name);
    if (gguf == nullptr || golden_name == GoldenOfGguf().end()) return 0;
    const auto reference = LoadFixtureTokenizer(golden_name->second);
    if (reference == nullptr) return 0;
    const Json golden = ReadJson(TextFolder() / "tokenize" / (golden_name->second + ".json"));
    return RunGgufCases(golden, *gguf, *reference);
  });
}

size_t CommonPrefix(const Ids& a, const Ids& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void RunSeamCase(const Json& test_case, const Tokenizer& tokenizer) {
  const std::string a = test_case["a"].get<std::string>();
  const std::string b = test_case["b"].get<std::string>();
  const auto ids_a = tokenizer.Encode(a, {});
  const auto ids_b = tokenizer.Encode(b, {});
  const auto ids_ab = tokenizer.Encode(a + b, {});
  ASSERT_TRUE(ids_a.ok() && ids_b.ok() && ids_ab.ok());
  EXPECT_EQ(*ids_a, test_case["ids_a"].get<Ids>());
  EXPECT_EQ(*ids_b, test_case["ids_b"].get<Ids>());
  EXPECT_EQ(*ids_ab, test_case["ids_ab"].get<Ids>());

  const size_t common = CommonPrefix(*ids_a, *ids_ab);
  EXPECT_EQ(common, test_case["common_tokens"].get<size_t>());
  EXPECT_EQ(common == ids_a->size(), test_case["a_is_prefix"].get<bool>());
  const std::string bytes_a = Rendered(tokenizer, *ids_a);
  const std::string bytes_ab = Rendered(tokenizer, *ids_ab);
  EXPECT_EQ(Rendered(tokenizer, Ids(ids_a->begin(), ids_a->begin() + common)).size(),
            test_case["common_bytes"].get<size_t>());
  EXPECT_EQ(bytes_a.size(), test_case["bytes_a"].get<size_t>());
  EXPECT_EQ(bytes_ab.size(), test_case["bytes_ab"].get<size_t>());
  EXPECT_EQ(bytes_ab.compare(0, bytes_a.size(), bytes_a) == 0,
            test_case["rendered_a_is_byte_prefix"].get<bool>());
  Ids joined = *ids_a;
  joined.insert(joined.end(), ids_b->begin(), ids_b->end());
  EXPECT_EQ(joined == *ids_ab, test_case["concat_equals_joint"].get<bool>());
}

TEST(TextGolden, Seams) {
  RunGoldens("seams", [](const std::filesystem::path& path) -> size_t {
    const Json golden = ReadJson(path);
    const auto tokenizer = LoadFixtureTokenizer(golden["tokenizer"].get<std::string>());
    if (tokenizer == nullptr) return 0;
    return RunCases(golden, [&](const Json& test_case) { RunSeamCase(test_case, *tokenizer); });
  });
}

}  // namespace
}  // namespace kvmesh::text

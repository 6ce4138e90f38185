#include "common/text/pre_tokenizers.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace kvmesh::text {
namespace {

using nlohmann::json;

constexpr char kContraction[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d))";
constexpr char kSpaces[] = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kUpperWord[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)";
constexpr char kLowerWord[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)";

json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

json Split(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

json Splits(const std::vector<std::string>& expressions) {
  json parts = json::array();
  for (const std::string& expression : expressions) parts.push_back(Split(expression));
  parts.push_back(ByteLevel(false));
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

// The expression of Llama 3 and Qwen, which differ in digits, and in whether marks count as
// letters.
std::string WordsExpression(absl::string_view letters, absl::string_view digits,
                            absl::string_view not_punctuation) {
  return absl::StrCat(kContraction, R"(|[^\r\n\p{L}\p{N}]?)", letters, "+|", digits, "| ?[^",
                      not_punctuation, R"(]+[\r\n]*|)", kSpaces);
}

// The expression of tekken and gpt-4o.
std::string CasedExpression(absl::string_view suffix, absl::string_view digits) {
  return absl::StrCat(kUpperWord, suffix, "|", kLowerWord, suffix, "|", digits,
                      R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|)", kSpaces);
}

PreTokenizer Smollm() {
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  return {.pre_tokenizer = {{"type", "Sequence"},
                            {"pretokenizers", json::array({digits, ByteLevel(true)})}}};
}

PreTokenizer Gpt2() {
  return {.pre_tokenizer = ByteLevel(true)};
}

PreTokenizer Qwen(absl::string_view letters, absl::string_view not_punctuation) {
  return {.normalizer = {{"type", "NFC"}},
          .pre_tokenizer = Splits({WordsExpression(letters, R"(\p{N})", not_punctuation)})};
}

PreTokenizer Llama3() {
  return {
      .pre_tokenizer = Splits({WordsExpression(R"(\p{L})", R"(\p{N}{1,3})", R"(\s\p{L}\p{N})")}),
      .ignore_merges = true,
      .add_bos = true};
}

PreTokenizer Tekken() {
  return {.pre_tokenizer = Splits({CasedExpression("", R"(\p{N})")}),
          .ignore_merges = true,
          .add_bos = true};
}

PreTokenizer Gpt4o() {
  return {
      .pre_tokenizer = Splits({CasedExpression(absl::StrCat(kContraction, "?"), R"(\p{N}{1,3})")}),
      .ignore_merges = true};
}

PreTokenizer DeepseekV3() {
  const std::string words =
      absl::StrCat(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)",
                   R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)", kSpaces);
  return {.pre_tokenizer =
              Splits({R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
                      words})};
}

}  // namespace

std::optional<PreTokenizer> PreTokenizerByName(absl::string_view pre) {
  const auto is_one_of = [pre](const std::vector<absl::string_view>& names) {
    return absl::c_linear_search(names, pre);
  };
  if (pre == "smollm") return Smollm();
  if (pre == "gpt-2") return Gpt2();
  if (is_one_of({"qwen2", "deepseek-r1-qwen"})) return Qwen(R"(\p{L})", R"(\s\p{L}\p{N})");
  if (pre == "qwen35") return Qwen(R"([\p{L}\p{M}])", R"(\s\p{L}\p{M}\p{N})");
  if (is_one_of({"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "pixtral"})) {
    return Llama3();
  }
  if (pre == "tekken") return Tekken();
  if (pre == "gpt-4o") return Gpt4o();
  if (pre == "deepseek-v3") return DeepseekV3();
  return std::nullopt;
}

}  // namespace kvmesh::text

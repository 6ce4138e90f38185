#include "common/text/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/model/printable.h"
#include "common/text/pre_tokenizers.h"

namespace kvmesh::text {
namespace {

using nlohmann::json;

constexpr char kPrefix[] = "tokenizer.ggml.";

std::string Key(absl::string_view name) {
  return absl::StrCat(kPrefix, name);
}

enum TokenType : int64_t {
  kNormal = 1,
  kControl = 3,
  kUserDefined = 4,
};

struct Vocabulary {
  std::vector<absl::string_view> tokens;
  std::vector<int64_t> types;
};

absl::StatusOr<Vocabulary> ReadVocabulary(const model::GgufFile& gguf) {
  Vocabulary vocabulary;
  KVMESH_ASSIGN_OR_RETURN(vocabulary.tokens, gguf.GetStrings(Key("tokens")));
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (!IsUtf8(vocabulary.tokens[i])) {
      return absl::InvalidArgumentError(absl::StrCat(Key("tokens"), "[", i, "] is not UTF-8"));
    }
  }
  if (!gguf.Has(Key("token_type"))) {
    vocabulary.types.assign(vocabulary.tokens.size(), kNormal);
    return vocabulary;
  }
  KVMESH_ASSIGN_OR_RETURN(vocabulary.types, gguf.GetInts(Key("token_type")));
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(Key("token_type"), " has ",
                                                   vocabulary.types.size(), " entries for ",
                                                   vocabulary.tokens.size(), " tokens"));
  }
  return vocabulary;
}

// The id under `name`, if the file has one.
absl::StatusOr<std::optional<uint32_t>> TokenId(const model::GgufFile& gguf, absl::string_view name,
                                                size_t vocab_size) {
  const std::string key = Key(name);
  if (!gguf.Has(key) || vocab_size == 0) return std::nullopt;
  KVMESH_ASSIGN_OR_RETURN(const uint64_t id, gguf.GetUint(key, 0, vocab_size - 1));
  return static_cast<uint32_t>(id);
}

absl::StatusOr<bool> BoolOr(const model::GgufFile& gguf, absl::string_view name, bool otherwise) {
  return gguf.Has(Key(name)) ? gguf.GetBool(Key(name)) : absl::StatusOr<bool>(otherwise);
}

json VocabularyJson(const Vocabulary& vocabulary) {
  json vocab = json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    vocab[std::string(vocabulary.tokens[id])] = id;
  }
  return vocab;
}

json AddedTokens(const Vocabulary& vocabulary) {
  json added = json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = vocabulary.types[id];
    if ((type != kControl && type != kUserDefined) || vocabulary.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", std::string(vocabulary.tokens[id])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControl}});
  }
  return added;
}

// Puts the ids that the file wants around a text into the tokenizer's post-processor.
absl::StatusOr<json> PostProcessor(const model::GgufFile& gguf, const Vocabulary& vocabulary,
                                   bool add_bos_by_default) {
  KVMESH_ASSIGN_OR_RETURN(const bool add_bos, BoolOr(gguf, "add_bos_token", add_bos_by_default));
  KVMESH_ASSIGN_OR_RETURN(const bool add_eos, BoolOr(gguf, "add_eos_token", false));
  const size_t size = vocabulary.tokens.size();
  KVMESH_ASSIGN_OR_RETURN(const auto bos, TokenId(gguf, "bos_token_id", size));
  KVMESH_ASSIGN_OR_RETURN(const auto eos, TokenId(gguf, "eos_token_id", size));
  json single = json::array();
  json special = json::object();
  const auto add = [&](uint32_t id) {
    const std::string name(vocabulary.tokens[id]);
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  if (add_bos && bos.has_value()) add(*bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (add_eos && eos.has_value()) add(*eos);
  json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return json{{"type", "TemplateProcessing"},
              {"single", single},
              {"pair", pair},
              {"special_tokens", special}};
}

absl::StatusOr<json> MergesFromFile(const model::GgufFile& gguf) {
  KVMESH_ASSIGN_OR_RETURN(const auto merges, gguf.GetStrings(Key("merges")));
  json pairs = json::array();
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == absl::string_view::npos || !IsUtf8(merges[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          Key("merges"), "[", i, "] is not two tokens: ", model::Printable(merges[i])));
    }
    pairs.push_back(json::array(
        {std::string(merges[i].substr(0, space)), std::string(merges[i].substr(space + 1))}));
  }
  return pairs;
}

absl::StatusOr<json> ByteLevelTokenizer(const model::GgufFile& gguf, const Vocabulary& vocabulary) {
  KVMESH_ASSIGN_OR_RETURN(const absl::string_view pre, gguf.GetString(Key("pre")));
  const std::optional<PreTokenizer> rules = PreTokenizerByName(pre);
  if (!rules.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(Key("pre"), ": pre-tokenizer ", model::Printable(pre), " is not supported"));
  }
  KVMESH_ASSIGN_OR_RETURN(json merges, MergesFromFile(gguf));
  KVMESH_ASSIGN_OR_RETURN(json post_processor, PostProcessor(gguf, vocabulary, rules->add_bos));
  return json{{"version", "1.0"},
              {"added_tokens", AddedTokens(vocabulary)},
              {"normalizer", rules->normalizer},
              {"pre_tokenizer", rules->pre_tokenizer},
              {"post_processor", std::move(post_processor)},
              {"decoder",
               {{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", true},
                {"use_regex", false}}},
              {"model",
               {{"type", "BPE"},
                {"unk_token", nullptr},
                {"byte_fallback", false},
                {"ignore_merges", rules->ignore_merges},
                {"vocab", VocabularyJson(vocabulary)},
                {"merges", std::move(merges)}}}};
}

size_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// Merges of a sentencepiece vocabulary: every cut of a token into two tokens, best score first.
// (transformers' `generate_merges`, with ties broken by the lengths of the parts, the longer
// first.)
json MergesFromScores(const Vocabulary& vocabulary, const std::vector<float>& scores) {
  struct Merge {
    uint32_t left, right;
    float score;
    size_t left_length, right_length;
  };
  const auto can_merge = [&](size_t id) {
    return vocabulary.types[id] == kNormal || vocabulary.types[id] == kUserDefined;
  };
  absl::flat_hash_map<absl::string_view, uint32_t> ids;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (can_merge(id)) ids[vocabulary.tokens[id]] = id;
  }
  std::vector<Merge> merges;
  for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!can_merge(id)) continue;
    const absl::string_view token = vocabulary.tokens[id];
    const size_t first = merges.size();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      const auto right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->second, right->second, scores[id], CountCharacters(left->first),
                        CountCharacters(right->first)});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [](const Merge& a, const Merge& b) {
                return std::pair(a.left, a.right) < std::pair(b.left, b.right);
              });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left_length, a.right_length) >
           std::tuple(b.score, b.left_length, b.right_length);
  });
  json pairs = json::array();
  for (const Merge& merge : merges) {
    pairs.push_back(json::array(
        {std::string(vocabulary.tokens[merge.left]), std::string(vocabulary.tokens[merge.right])}));
  }
  return pairs;
}

json Replace(absl::string_view from, absl::string_view to) {
  return {{"type", "Replace"},
          {"pattern", {{"String", std::string(from)}}},
          {"content", std::string(to)}};
}

absl::StatusOr<json> SentencepieceTokenizer(const model::GgufFile& gguf,
                                            const Vocabulary& vocabulary) {
  constexpr char kSpace[] = "\xE2\x96\x81";  // U+2581
  KVMESH_ASSIGN_OR_RETURN(const std::vector<float> scores, gguf.GetFloats(Key("scores")));
  if (scores.size() != vocabulary.tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(Key("scores"), " has ", scores.size(),
                                                   " entries for ", vocabulary.tokens.size(),
                                                   " tokens"));
  }
  KVMESH_ASSIGN_OR_RETURN(const bool prefix, BoolOr(gguf, "add_space_prefix", true));
  KVMESH_ASSIGN_OR_RETURN(const auto unknown,
                          TokenId(gguf, "unknown_token_id", vocabulary.tokens.size()));
  KVMESH_ASSIGN_OR_RETURN(json post_processor, PostProcessor(gguf, vocabulary, true));
  json normalizers = json::array();
  json decoders =
      json::array({Replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(Replace(" ", kSpace));
  return json{{"version", "1.0"},
              {"added_tokens", AddedTokens(vocabulary)},
              {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
              {"pre_tokenizer", nullptr},
              {"post_processor", std::move(post_processor)},
              {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
              {"model",
               {{"type", "BPE"},
                {"unk_token", unknown.has_value() ? json(std::string(vocabulary.tokens[*unknown]))
                                                  : json(nullptr)},
                {"fuse_unk", true},
                {"byte_fallback", true},
                {"ignore_merges", false},
                {"vocab", VocabularyJson(vocabulary)},
                {"merges", MergesFromScores(vocabulary, scores)}}}};
}

}  // namespace

absl::StatusOr<TokenizerSource> TokenizerFromGguf(const model::GgufFile& gguf) {
  if (!gguf.Has(Key("model"))) {
    return absl::NotFoundError(absl::StrCat("no tokenizer: ", Key("model"), " is absent"));
  }
  KVMESH_ASSIGN_OR_RETURN(const absl::string_view kind, gguf.GetString(Key("model")));
  if (kind == "none" || kind == "no_vocab") {
    return absl::NotFoundError(
        absl::StrCat("no tokenizer: ", Key("model"), " is ", model::Printable(kind)));
  }
  if (kind != "gpt2" && kind != "llama") {
    return absl::UnimplementedError(absl::StrCat(Key("model"), ": tokenizer model ",
                                                 model::Printable(kind),
                                                 " is not supported (gpt2 and llama are)"));
  }
  KVMESH_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(gguf));
  KVMESH_ASSIGN_OR_RETURN(const json tokenizer, kind == "gpt2"
                                                    ? ByteLevelTokenizer(gguf, vocabulary)
                                                    : SentencepieceTokenizer(gguf, vocabulary));
  TokenizerSource source{.json = tokenizer.dump()};
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    KVMESH_ASSIGN_OR_RETURN(const auto id, TokenId(gguf, name, vocabulary.tokens.size()));
    if (id.has_value()) source.eos_ids.push_back(*id);
  }
  return source;
}

absl::StatusOr<ChatTemplateSource> ChatTemplateFromGguf(const model::GgufFile& gguf) {
  constexpr char kTemplate[] = "tokenizer.chat_template";
  if (!gguf.Has(kTemplate)) {
    return absl::NotFoundError(absl::StrCat("no chat template: ", kTemplate, " is absent"));
  }
  KVMESH_ASSIGN_OR_RETURN(const absl::string_view text, gguf.GetString(kTemplate));
  ChatTemplateSource source{.source = std::string(text)};
  if (!gguf.Has(Key("tokens"))) return source;
  KVMESH_ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(gguf));
  constexpr std::pair<const char*, const char*> kSpecial[] = {{"bos_token_id", "bos_token"},
                                                              {"eos_token_id", "eos_token"},
                                                              {"unknown_token_id", "unk_token"},
                                                              {"padding_token_id", "pad_token"}};
  for (const auto& [id_name, name] : kSpecial) {
    KVMESH_ASSIGN_OR_RETURN(const auto id, TokenId(gguf, id_name, vocabulary.tokens.size()));
    if (id.has_value()) source.special[name] = std::string(vocabulary.tokens[*id]);
  }
  return source;
}

}  // namespace kvmesh::text

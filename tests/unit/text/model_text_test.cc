// Where a model's tokenizer and chat template are found, and what is refused there.
#include "common/text/model_text.h"

#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/text/text_fixtures.h"

namespace kvmesh::text {
namespace {

using ::testing::HasSubstr;

TEST(ModelText, AModelWithoutThemIsNotFound) {
  const TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(Tokenizer::FromModel(folder.path()).status()));
  EXPECT_TRUE(absl::IsNotFound(ChatTemplate::FromModel(folder.path()).status()));
  const std::string absent = folder.path() / "absent.gguf";
  EXPECT_TRUE(absl::IsNotFound(Tokenizer::FromModel(absent).status()));
  EXPECT_TRUE(absl::IsNotFound(ChatTemplate::FromModel(absent).status()));
}

TEST(ModelText, TheTemplatesOwnFileWinsOverTheConfig) {
  const TempFolder folder;
  folder.Write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(LoadChatTemplateSource(folder.path()).value().source, "config");
  folder.Write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(LoadChatTemplateSource(folder.path()).value().source, "json");
  folder.Write("chat_template.jinja", "jinja");
  EXPECT_EQ(LoadChatTemplateSource(folder.path()).value().source, "jinja");
}

TEST(ModelText, OfNamedTemplatesTheDefaultCounts) {
  const TempFolder folder;
  folder.Write(
      "tokenizer_config.json",
      R"({"chat_template": [7, {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(LoadChatTemplateSource(folder.path()).value().source, "d");
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_TRUE(absl::IsNotFound(LoadChatTemplateSource(folder.path()).status()));
}

TEST(ModelText, SpecialTokensAreStringsOrObjects) {
  const TempFolder folder;
  folder.Write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}{{ pad_token }}");
  folder.Write("tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null})");
  folder.Write("special_tokens_map.json", R"({"bos_token": "other", "pad_token": "<pad>"})");
  const auto tmpl = ChatTemplate::FromModel(folder.path()).value();
  EXPECT_EQ(tmpl->Render({.messages_json = "[{}]"}).value(), "<s></s><pad>");
}

TEST(ModelText, MalformedFilesAreRefusedByPath) {
  const TempFolder folder;
  folder.Write("tokenizer_config.json", "[");
  const absl::Status status = ChatTemplate::FromModel(folder.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer_config.json"));
  folder.Write("tokenizer_config.json", "{}");
  folder.Write("chat_template.jinja", "{% if %}");
  EXPECT_TRUE(absl::IsInvalidArgument(ChatTemplate::FromModel(folder.path()).status()));
  folder.Write("tokenizer.json", "{}");
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::FromModel(folder.path()).status()));
  folder.Write("model.gguf", "GGUF");
  EXPECT_TRUE(absl::IsInvalidArgument(Tokenizer::FromModel(folder.path() / "model.gguf").status()));
}

}  // namespace
}  // namespace kvmesh::text

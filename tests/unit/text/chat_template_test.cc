// Chat templates beyond the goldens: what is refused, and the limits of a template that comes with
// a model file.
#include "common/text/chat_template.h"

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh::text {
namespace {

using ::testing::HasSubstr;

constexpr char kHello[] = R"([{"role": "user", "content": "Hello"}])";

absl::StatusOr<std::string> Render(const std::string& source, const ChatInput& input) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> tmpl = ChatTemplate::FromSource(source, "{}");
  if (!tmpl.ok()) return tmpl.status();
  return (*tmpl)->Render(input);
}

absl::StatusOr<std::string> Render(const std::string& source) {
  return Render(source, {.messages_json = kHello});
}

void ExpectRefused(const absl::StatusOr<std::string>& text, const std::string& why) {
  ASSERT_FALSE(text.ok()) << *text;
  EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(why));
}

TEST(ChatTemplate, WhatDoesNotParseIsRefusedWithItsLine) {
  ExpectRefused(Render("a\n{% if %}"), "(line 2)");
}

TEST(ChatTemplate, RaiseExceptionPassesItsMessageOnFromWithinAMacro) {
  ExpectRefused(
      Render("{% macro m() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ m() }}"),
      "refused: roles must alternate");
}

TEST(ChatTemplate, MalformedInputIsRefusedByName) {
  const std::string source = "{{ messages }}";
  ExpectRefused(Render(source, {.messages_json = "[{]"}), "messages: malformed JSON");
  ExpectRefused(Render(source, {.messages_json = "{}"}), "messages: JSON of another kind");
  ExpectRefused(Render(source, {.messages_json = "[]"}), "messages is empty");
  ExpectRefused(Render(source, {.messages_json = ""}), "messages is empty");
  ExpectRefused(Render(source, {.messages_json = R"([{}, 1])"}), "messages[1] is not an object");
  ExpectRefused(Render(source, {.messages_json = kHello, .tools_json = "{"}),
                "tools: malformed JSON");
  ExpectRefused(Render(source, {.messages_json = kHello, .kwargs_json = "[]"}),
                "template variables: JSON of another kind");
  ExpectRefused(Render(source, {.messages_json = "[{\"role\": \"\xFF\"}]"}),
                "messages is not UTF-8 at byte offset 11");
}

TEST(ChatTemplate, VariablesOfTheRequestDoNotReplaceMessages) {
  const ChatInput input = {.messages_json = kHello,
                           .kwargs_json = R"({"messages": 1, "tools": 2, "other": 3})"};
  EXPECT_EQ(Render("{{ messages | length }}{{ tools }}{{ other }}", input).value(), "1None3");
}

TEST(ChatTemplate, TextOfAMessageIsNoTemplate) {
  const ChatInput input = {.messages_json = R"([{"content": "{{ 1 + 1 }}{% raw %}"}])"};
  EXPECT_EQ(Render("{{ messages[0].content }}", input).value(), "{{ 1 + 1 }}{% raw %}");
}

TEST(ChatTemplate, NulBytesPass) {
  const ChatInput input = {.messages_json = R"([{"content": "a\u0000b"}])"};
  EXPECT_EQ(Render("{{ messages[0].content }}", input).value(), std::string("a\0b", 3));
}

TEST(ChatTemplate, ATimeFormatThatIsNoneIsRefused) {
  ChatInput input = {.messages_json = kHello, .now = absl::CivilSecond(2024, 2, 29, 1, 2, 3)};
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y %H:%M:%S') }}", input).value(),
            "29 Feb 2024 01:02:03");
  ExpectRefused(Render("{{ strftime_now('%Q') }}", input), "is not a time format");
}

TEST(ChatTemplate, AnEndlessTemplateRunsOutOfFuel) {
  ExpectRefused(
      Render("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}"),
      "more steps than a template may take");
}

TEST(ChatTemplate, ATemplateCannotMultiplyTextWithoutLimit) {
  const std::string doubling =
      "{% set ns = namespace(s='x' * 4096) %}{% for i in range(40) %}{% set ns.s = ";
  const std::string end = " %}{% endfor %}{{ ns.s | length }}";
  EXPECT_FALSE(Render(doubling + "ns.s + ns.s" + end).ok());
  EXPECT_FALSE(Render(doubling + "ns.s ~ ns.s" + end).ok());
  EXPECT_FALSE(Render(doubling + "ns.s | replace('x', 'xxxxxxxx')" + end).ok());
  EXPECT_FALSE(Render(doubling + "ns.s.replace('x', 'xxxxxxxx')" + end).ok());
  EXPECT_FALSE(Render(doubling + "ns.s.join([ns.s, ns.s, ns.s])" + end).ok());
  EXPECT_FALSE(Render("{{ 'x'.ljust(99999999999) }}").ok());
  EXPECT_FALSE(Render("{{ 'x' | indent(99999999999) }}").ok());
  EXPECT_FALSE(Render("{{ [1] | tojson(indent=99999999999) }}").ok());
}

TEST(ChatTemplate, RecursionEndsBeforeTheStack) {
  EXPECT_FALSE(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").ok());
  EXPECT_FALSE(Render("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}").ok());
  const std::string open(100000, '(');
  EXPECT_FALSE(Render("{{ " + open + " }}").ok());
  std::string json(100000, '[');
  EXPECT_FALSE(Render("{{ messages }}", {.messages_json = json}).ok());
}

TEST(ChatTemplate, AValueThatNestsTooDeeplyIsNotPrinted) {
  const std::string nest =
      "{% set ns = namespace(x=[]) %}{% for i in range(COUNT) %}{% set ns.x = [ns.x] %}{% endfor "
      "%}";
  const auto with = [&](const std::string& count, const std::string& print) {
    std::string source = nest;
    source.replace(source.find("COUNT"), 5, count);
    return Render(source + print);
  };
  EXPECT_TRUE(with("100", "{{ ns.x }}{{ ns.x | tojson }}").ok());
  ExpectRefused(with("1000", "{{ ns.x }}"), "nests deeper");
  ExpectRefused(with("1000", "{{ ns.x | tojson }}"), "nests deeper");
  EXPECT_EQ(with("9999", "ok").value(), "ok");
  EXPECT_EQ(with("99999", "ok").value(), "ok");
}

TEST(ChatTemplate, AnUnknownMethodOrFilterIsAnErrorThatNamesIt) {
  ExpectRefused(Render("{{ messages.pop() }}"), "pop");
  ExpectRefused(Render("{{ messages | frobnicate }}"), "frobnicate");
}

TEST(ChatTemplate, ThreadsRenderWithTheirOwnClock) {
  const auto tmpl = ChatTemplate::FromSource("{{ strftime_now('%Y') }}", "{}").value();
  std::vector<std::thread> threads;
  for (int year = 2000; year < 2004; ++year) {
    threads.emplace_back([&tmpl, year] {
      for (int i = 0; i < 200; ++i) {
        const ChatInput input = {.messages_json = kHello, .now = absl::CivilSecond(year)};
        EXPECT_EQ(tmpl->Render(input).value(), absl::StrCat(year));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvmesh::text

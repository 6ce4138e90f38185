#include "services/router/core/text_assembler.h"

#include <gtest/gtest.h>

#include "services/router/core/piece_index.h"
#include "tests/testing/fake_tokenizer.h"

namespace kvmesh::router {
namespace {

forward::Output Token(uint32_t id) {
  return {.token_id = id};
}

class TextAssemblerTest : public ::testing::Test {
 protected:
  // 0 a, 1 b, 2 c, 3 and 4 the halves of é, 5 the end of sequence.
  testing::FakeTokenizer tokenizer_{{"a", "b", "c", "\xC3", "\xA9", "<eos>"}, /*control=*/{5}};
  TextOptions options_{.eos_token_ids = {5}, .max_tokens = 4};
};

TEST_F(TextAssemblerTest, ACharacterOfTwoTokensComesOutWhole) {
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push(Token(3)).text, "");
  EXPECT_EQ(assembler.Push(Token(4)).text, "\xC3\xA9");
}

TEST_F(TextAssemblerTest, EndOfSequenceIsDecidedByIdAndGivesNoText) {
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push(Token(0)).reason, FinishReason::kNone);
  const TextAssembler::Step end = assembler.Push(Token(5));
  EXPECT_EQ(end.reason, FinishReason::kEos);
  EXPECT_EQ(end.text, "");
}

TEST_F(TextAssemblerTest, IgnoredEndOfSequenceGoesOnWithoutText) {
  options_.ignore_eos = true;
  TextAssembler assembler(tokenizer_, options_);
  const TextAssembler::Step step = assembler.Push(Token(5));
  EXPECT_EQ(step.reason, FinishReason::kNone);
  EXPECT_EQ(step.text, "");
}

TEST_F(TextAssemblerTest, TheLastAllowedTokenGivesOutWhatWasHeldBack) {
  options_.max_tokens = 2;
  options_.stop_strings = {"abc"};
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push(Token(0)).text, "");  // may become the stop string
  const TextAssembler::Step end = assembler.Push(Token(1));
  EXPECT_EQ(end.reason, FinishReason::kLength);
  EXPECT_EQ(end.text, "ab");
}

TEST_F(TextAssemblerTest, AStopStringAcrossTokensNeverLeaks) {
  options_.stop_strings = {"bc"};
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push(Token(0)).text, "a");
  EXPECT_EQ(assembler.Push(Token(1)).text, "");
  const TextAssembler::Step end = assembler.Push(Token(2));
  EXPECT_EQ(end.reason, FinishReason::kStop);
  EXPECT_EQ(end.stop_string, "bc");
  EXPECT_EQ(end.text, "");
}

TEST_F(TextAssemblerTest, AStopStringInTheLastAllowedTokenWinsOverLength) {
  options_.max_tokens = 1;
  options_.stop_strings = {"a"};
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push(Token(0)).reason, FinishReason::kStop);
}

TEST_F(TextAssemblerTest, ATailWithoutIdsGivesItsPiecesAndItsOwnEnd) {
  TextAssembler assembler(tokenizer_, options_);
  EXPECT_EQ(assembler.Push({.piece = "ab"}).text, "ab");
  EXPECT_EQ(assembler.Push({.piece = "<eos>", .finished = true}).reason, FinishReason::kEos);
}

TEST(PieceIndex, PiecesThatAreOneTokenEachKeepTheirIds) {
  const testing::FakeTokenizer tokenizer({"a", "b", "ab", "\xC3", "<eos>"}, {4});
  const PieceIndex index(tokenizer);
  EXPECT_EQ(*index.Ids({"ab", "a", "\xC3"}), (std::vector<uint32_t>{2, 0, 3}));
}

TEST(PieceIndex, APieceThatIsNoSingleTokenMakesTheWholeTokenisedAgain) {
  const testing::FakeTokenizer tokenizer({"a", "b", "x", "x", "<eos>"}, {4});
  const PieceIndex index(tokenizer);
  EXPECT_EQ(*index.Ids({"a", "ba"}), (std::vector<uint32_t>{0, 1, 0}));
  EXPECT_EQ(*index.Ids({"b", "x"}), (std::vector<uint32_t>{1, 2}));  // two tokens have these bytes
}

}  // namespace
}  // namespace kvmesh::router

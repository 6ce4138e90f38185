#include "services/meta/core/lookup_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <string>

namespace kvmesh::meta {
namespace {

const slab::KeyNamespace kNamespace = {std::string(32, 'm'), "q4_1/f16", std::string(32, 'c')};

FiledCutPoint PointOf(absl::string_view text, uint32_t token_count = 1) {
  return {.key = slab::ContentKey(kNamespace, text),
          .block_hash = slab::BlockHash(kNamespace, text),
          .tail_hash = slab::TailHash(text),
          .text_bytes = static_cast<uint32_t>(text.size()),
          .token_count = token_count};
}

using Accept = LookupPart::Accept;
constexpr auto kAny = [](uint32_t) { return true; };

std::optional<LookupPart::Hit> Find(const LookupPart& part, absl::string_view text,
                                    Accept accept = kAny) {
  const LookupQuery query(kNamespace, text);
  for (int64_t blocks = query.blocks(); blocks >= 0; --blocks) {
    const auto count = static_cast<uint32_t>(blocks);
    if (auto hit = part.Longest(query, count, query.BlockHash(count), accept, [](uint32_t) {})) {
      return hit;
    }
  }
  return std::nullopt;
}

TEST(LookupPart, FindsTheLongestOfManyLengthsBehindOneBlock) {
  const std::string block(1024, 'b');
  const std::string tail(1023, 't');
  LookupPart part;
  for (uint32_t n = 0; n < 1024; n += 3) {
    part.Add(PointOf(block + tail.substr(0, n), n), n, 0, LookupPart::kNone);
  }
  for (uint32_t n = 0; n < 1024; ++n) {
    // The byte behind is another one, so that nothing longer matches.
    const auto hit = Find(part, block + tail.substr(0, n) + "x" + tail);
    ASSERT_TRUE(hit.has_value()) << n;
    EXPECT_EQ(hit->row, n / 3 * 3) << n;
    EXPECT_EQ(hit->text_bytes, 1024 + n / 3 * 3) << n;
    EXPECT_EQ(hit->token_count, n / 3 * 3) << n;
  }
}

TEST(LookupPart, OffersTheLastUsedRowOfAKeyAsLongAsThereIsOne) {
  for (const bool lone : {true, false}) {
    LookupPart part;
    const std::string text(1500, 'a');
    if (!lone) part.Add(PointOf(text.substr(0, 1400)), 99, 0, LookupPart::kNone);
    std::vector<uint32_t> entries;
    for (uint32_t row = 0; row < 4; ++row) {
      entries.push_back(part.Add(PointOf(text), row, 0, LookupPart::kNone));
    }
    EXPECT_EQ(Find(part, text)->row, 3U);
    part.Touch(entries[1], 1);  // from the middle
    EXPECT_EQ(Find(part, text)->row, 1U);
    part.Touch(entries[0], 1);  // from the end
    EXPECT_EQ(Find(part, text)->row, 0U);
    part.Touch(entries[0], 1);  // is the first already
    EXPECT_EQ(Find(part, text)->row, 0U);
    part.Remove(entries[3]);  // neither first nor last
    part.Remove(entries[0]);
    EXPECT_EQ(Find(part, text)->row, 1U);
    part.Remove(entries[2]);
    EXPECT_EQ(Find(part, text)->row, 1U);
    part.Remove(entries[1]);
    EXPECT_EQ(Find(part, text).has_value(), !lone);
  }
}

TEST(LookupPart, OffersTheFirstRowThatMayBeReadThenAShorterOne) {
  LookupPart part;
  const std::string text(1500, 'a');
  part.Add(PointOf(text.substr(0, 1400)), 100, 0, LookupPart::kNone);
  for (uint32_t row = 0; row < 3; ++row) part.Add(PointOf(text), row, 0, LookupPart::kNone);
  EXPECT_EQ(Find(part, text, [](uint32_t row) { return row != 2; })->row, 1U);
  EXPECT_EQ(Find(part, text, [](uint32_t row) { return row > 2; })->row, 100U);
  EXPECT_FALSE(Find(part, text, [](uint32_t) { return false; }).has_value());
}

TEST(LookupPart, AsksABoundedNumberOfRowsUntilTheOthersAreParked) {
  LookupPart part;
  std::vector<uint32_t> entries;
  for (uint32_t row = 0; row <= LookupPart::kRowsAskedMax; ++row) {
    entries.push_back(part.Add(PointOf("text"), row, 0, LookupPart::kNone));
  }
  int asked = 0;
  const auto only_the_oldest = [&](uint32_t row) {
    ++asked;
    return row == 0;
  };
  EXPECT_FALSE(Find(part, "text", only_the_oldest).has_value());
  EXPECT_EQ(asked, LookupPart::kRowsAskedMax);
  part.Park(entries.back());
  EXPECT_EQ(Find(part, "text", only_the_oldest)->row, 0U);
}

TEST(LookupPart, AParkedCutPointIsMetAgainOnceItIsUnparked) {
  for (const bool lone : {true, false}) {
    LookupPart part;
    if (!lone) part.Add(PointOf("te"), 1, 0, LookupPart::kNone);
    const uint32_t entry = part.Add(PointOf("text"), 2, 0, LookupPart::kNone);
    for (int times = 0; times < 2; ++times) part.Park(entry);
    const auto hit = Find(part, "text");
    EXPECT_EQ(hit ? hit->row : 0, lone ? 0U : 1U);
    part.Touch(entry, 5);
    for (int times = 0; times < 2; ++times) part.Unpark(entry);
    EXPECT_EQ(Find(part, "text")->row, 2U);
    part.Park(entry);
    part.Remove(entry);
    EXPECT_EQ(part.entries(), lone ? 0U : 1U);
  }
}

TEST(LookupPart, ARowThatIsFiledLateStandsWhereItsLastUseBelongs) {
  LookupPart part;
  std::vector<uint32_t> entries;
  for (const int32_t last_used_s : {30, 10, 20, -5, 25}) {
    entries.push_back(part.Add(PointOf("text"), static_cast<uint32_t>(100 + last_used_s),
                               last_used_s, LookupPart::kNone));
  }
  for (const uint32_t expected : {130U, 125U, 120U, 110U, 95U}) {
    ASSERT_EQ(Find(part, "text")->row, expected);
    for (const uint32_t entry : entries) {
      if (part.RowOf(entry) == expected) part.Park(entry);
    }
  }
  EXPECT_FALSE(Find(part, "text").has_value());
}

TEST(LookupPart, KeepsTheChainOfARow) {
  LookupPart part;
  const uint32_t first = part.Add(PointOf("one"), 7, 0, LookupPart::kNone);
  const uint32_t second = part.Add(PointOf("two"), 7, 0, first);
  EXPECT_EQ(part.Touch(second, 1), first);
  EXPECT_EQ(part.Remove(second), first);
  EXPECT_EQ(part.Remove(first), LookupPart::kNone);
  EXPECT_EQ(part.entries(), 0U);
}

TEST(LookupPart, ATailHashThatTwoTextsShareHidesNeither) {
  // No two short texts with equal tail hashes are at hand: the hash is given, the key decides.
  LookupPart part;
  FiledCutPoint a = PointOf("aaaa");
  FiledCutPoint b = PointOf("bbbb");
  FiledCutPoint c = PointOf("cccc");
  a.tail_hash = b.tail_hash;
  part.Add(a, 1, 0, LookupPart::kNone);
  part.Add(b, 2, 0, LookupPart::kNone);
  part.Add(c, 3, 0, LookupPart::kNone);
  EXPECT_EQ(Find(part, "bbbb")->row, 2U);
  EXPECT_EQ(Find(part, "cccc")->row, 3U);
}

TEST(LookupPart, AKeyThatIsNotTheTextsIsNoHit) {
  LookupPart part;
  FiledCutPoint wrong = PointOf("hello");
  wrong.key = slab::ContentKey(kNamespace, "hallo");
  const uint32_t entry = part.Add(wrong, 1, 0, LookupPart::kNone);
  EXPECT_FALSE(Find(part, "hello").has_value());
  part.Add(PointOf("he"), 2, 0, LookupPart::kNone);  // no longer alone in its block
  EXPECT_EQ(Find(part, "hello")->row, 2U);
  part.Remove(entry);
  EXPECT_EQ(Find(part, "hello")->row, 2U);
}

TEST(LookupPart, GivesMemoryOfRemovedOnesToNewOnes) {
  LookupPart part;
  const std::string text(5000, 'a');
  const auto fill = [&] {
    std::vector<uint32_t> entries;
    for (uint32_t n = 0; n < 5000; ++n) {
      entries.push_back(part.Add(PointOf(text.substr(0, n)), n, 0, LookupPart::kNone));
    }
    for (const uint32_t entry : entries) part.Remove(entry);
  };
  fill();
  const size_t memory = part.memory_bytes();
  for (int round = 0; round < 3; ++round) fill();
  EXPECT_EQ(part.memory_bytes(), memory);
  EXPECT_EQ(part.entries(), 0U);
}

TEST(LookupPart, AnInnerCutPointOfItsOwnTakesLessThan96Bytes) {
  LookupPart part;
  std::mt19937_64 random(1);
  size_t largest = 0;
  for (uint32_t n = 0; n < 100'000; ++n) {
    FiledCutPoint point{.block_hash = random(), .tail_hash = n, .text_bytes = n};
    for (size_t i = 0; i < 32; ++i) point.key.mutable_data()[i] = static_cast<uint8_t>(random());
    part.Add(point, n, 0, LookupPart::kNone);
    if (n >= 50'000) largest = std::max(largest, part.memory_bytes() / part.entries());
  }
  EXPECT_LT(largest, 96U);
}

// What an index is, without any structure: every cut point, in the order of last use.
class NaiveIndex {
 public:
  void Add(const std::string& text, uint32_t row) { uses_.push_front({text, row}); }
  void Remove(const std::string& text, uint32_t row) { uses_.remove({text, row}); }
  void Touch(const std::string& text, uint32_t row) {
    Remove(text, row);
    Add(text, row);
  }
  std::optional<std::pair<std::string, uint32_t>> Longest(absl::string_view prompt) const {
    std::optional<std::pair<std::string, uint32_t>> best;
    for (const auto& use : uses_) {
      if (prompt.substr(0, use.first.size()) != use.first) continue;
      if (!best || use.first.size() > best->first.size()) best = use;
    }
    return best;
  }

 private:
  std::list<std::pair<std::string, uint32_t>> uses_;
};

// Texts that branch off one another at, before and behind block boundaries.
std::vector<std::string> BranchingTexts(std::mt19937_64* random) {
  std::vector<std::string> texts = {""};
  while (texts.size() < 60) {
    const std::string& from = texts[(*random)() % texts.size()];
    const size_t around = (*random)() % 4 * 1024 + (*random)() % 5;
    std::string text = from.substr(0, std::max<size_t>(around, 2) - 2);
    text.append((*random)() % 3 == 0 ? (*random)() % 1500 : (*random)() % 4,
                static_cast<char>('a' + (*random)() % 3));
    if ((*random)() % 4 == 0) text.push_back('\0');
    texts.push_back(text);
  }
  return texts;
}

TEST(LookupPart, AnswersAsAnIndexWithoutStructureWould) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::vector<std::string> texts = BranchingTexts(&random);
    LookupPart part;
    NaiveIndex naive;
    struct Filed {
      std::string text;
      uint32_t row;
      uint32_t entry;
    };
    std::vector<Filed> filed;
    for (uint32_t step = 0; step < 400; ++step) {
      const uint64_t action = random() % 8;
      if (action < 4 || filed.empty()) {
        const std::string& text = texts[random() % texts.size()];
        filed.push_back({text, step, part.Add(PointOf(text), step, 0, LookupPart::kNone)});
        naive.Add(text, step);
      } else {
        const size_t at = random() % filed.size();
        const Filed chosen = filed[at];
        if (action < 6) {
          part.Touch(chosen.entry, 0);
          naive.Touch(chosen.text, chosen.row);
        } else {
          part.Remove(chosen.entry);
          naive.Remove(chosen.text, chosen.row);
          filed.erase(filed.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      const std::string prompt = texts[random() % texts.size()] + "z";
      const auto hit = Find(part, prompt);
      const auto expected = naive.Longest(prompt);
      ASSERT_EQ(hit.has_value(), expected.has_value()) << step;
      if (!hit) continue;
      ASSERT_EQ(hit->text_bytes, expected->first.size()) << step;
      ASSERT_EQ(hit->row, expected->second) << step;
    }
    ASSERT_EQ(part.entries(), filed.size());
  }
}

}  // namespace
}  // namespace kvmesh::meta

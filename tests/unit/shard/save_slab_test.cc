#include "services/shard/core/save_slab.h"

#include <gtest/gtest.h>

#include "common/slab/reader.h"
#include "tests/unit/shard/checkpoint_testing.h"

namespace kvmesh::shard {
namespace {

// Ids 0..255 are single bytes, 256 a control token: characters can be cut between tokens.
class ByteVocabulary final : public Vocabulary {
 public:
  std::string Piece(uint32_t id) const override { return std::string(1, static_cast<char>(id)); }
  std::string KeyBytes(uint32_t id) const override {
    std::string bytes;
    if (id == 256) slab::AppendControlToken(id, &bytes);
    if (id < 256) slab::AppendPiece(Piece(id), &bytes);
    return bytes;
  }
  bool IsEndOfSequence(uint32_t) const override { return false; }
};

std::vector<uint32_t> IdsOf(absl::string_view text) {
  std::vector<uint32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

// A snapshot of made-up state: its bytes do not matter here.
StateSnapshot SnapshotOf(const std::vector<uint32_t>& ids) {
  static const testing::ToyEngine* const engine = new testing::ToyEngine({.layers = {0, 6}});
  StateSnapshot snapshot{
      .cache_namespace = ToyNamespace(), .layers = {0, 6}, .tokens = ids, .bytes = 96 * ids.size()};
  snapshot.state = engine->NewState();
  const std::vector<uint8_t> rows(ids.size() * 8, 3);
  for (const auto& layer : snapshot.state) EXPECT_TRUE(layer->AppendRows(rows, rows).ok());
  return snapshot;
}

SlabFacts Facts() {
  return {.layers = {0, 6},
          .context_length = 4096,
          .can_be_cut = true,
          .min_tokens = 4,
          .align_tokens = 4,
          .hostname = "host",
          .writer_version = "test"};
}

SlabDraft Draft(const StateSnapshot& snapshot, const SlabFacts& facts = Facts()) {
  const ByteVocabulary vocabulary;
  auto draft = DraftSlab(snapshot, forward::SaveReason::kFinish, facts, vocabulary);
  EXPECT_TRUE(draft.ok()) << draft.status();
  return *std::move(draft);
}

std::vector<uint32_t> CutTokens(const SlabDraft& draft) {
  std::vector<uint32_t> tokens;
  for (const slab::CutPoint& point : draft.meta.cut_points) tokens.push_back(point.token_count);
  return tokens;
}

TEST(SaveSlab, TheDraftSaysTheExactSizeAndKeyOfTheFile) {
  for (const size_t tokens : {1, 3, 100, 5000}) {
    StateSnapshot snapshot = SnapshotOf(std::vector<uint32_t>(tokens, 'a'));
    if (tokens == 3) snapshot.last_row.assign(8, 1.5F);
    SlabDraft draft = Draft(snapshot);
    const uint64_t size = draft.file_bytes;
    const Sha256Digest key = draft.key;
    const std::atomic<bool> cancel{false};
    auto built =
        BuildSlab(std::move(draft), std::move(snapshot), Write(1), 1700000000, Facts(), cancel);
    ASSERT_TRUE(built.ok()) << built.status();
    const std::string file = (*built)->image().ToString();
    EXPECT_EQ(file.size(), size);
    const slab::MemorySource source(file);
    const auto reader = slab::SlabReader::Open(source);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE(reader->VerifyPayload().ok());
    EXPECT_EQ(reader->meta().key, key);
    EXPECT_EQ(reader->meta().write_id, Write(1));
    EXPECT_EQ(reader->meta().header.reason, slab::SaveReason::kFinish);
    EXPECT_EQ(reader->meta().header.creation_time_s, 1700000000u);
    EXPECT_EQ(reader->meta().header.context_size, 4096u);
    EXPECT_EQ(reader->meta().hostname, "host");
    EXPECT_EQ(reader->meta().last_output.has_value(), tokens == 3);
  }
}

TEST(SaveSlab, CutPointsStandAtMultiplesBeforeTheEnd) {
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("abc")))), std::vector<uint32_t>{});
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("abcd")))), std::vector<uint32_t>{});
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("abcde")))), (std::vector<uint32_t>{4}));
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("abcdefghi")))), (std::vector<uint32_t>{4, 8}));
  SlabFacts facts = Facts();
  facts.min_tokens = 5;
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("abcdefghi")), facts)), (std::vector<uint32_t>{8}));
}

TEST(SaveSlab, ACutPointInsideACharacterMovesBackToTheTokenBeforeIt) {
  EXPECT_EQ(CutTokens(Draft(SnapshotOf(IdsOf("ab\xF0\x9F\x98\x80"
                                             "cdef")))),
            (std::vector<uint32_t>{2, 8}));
}

TEST(SaveSlab, AModelWithStateThatCannotBeCutHasNoCutPoints) {
  SlabFacts facts = Facts();
  facts.can_be_cut = false;
  EXPECT_TRUE(CutTokens(Draft(SnapshotOf(IdsOf("abcdefghi")), facts)).empty());
}

TEST(SaveSlab, AControlTokenNeverSharesAKeyWithWhatSpellsIt) {
  const ByteVocabulary vocabulary;
  const std::vector<uint32_t> control = {'a', 256};
  std::string spelled;
  slab::AppendControlToken(256, &spelled);
  EXPECT_EQ(TextOf(control, vocabulary, nullptr), "a" + spelled);
  EXPECT_NE(KeyOf(ToyNamespace(), control, vocabulary),
            KeyOf(ToyNamespace(), IdsOf("a" + spelled), vocabulary));
}

TEST(SaveSlab, IdsSpellTheirOwnTextAndNoOther) {
  const ByteVocabulary vocabulary;
  const std::vector<uint32_t> ids = IdsOf("abc");
  EXPECT_TRUE(Spell(ids, "abc", vocabulary));
  EXPECT_TRUE(Spell({}, "", vocabulary));
  for (const absl::string_view other : {"ab", "abcd", "abd", "", "xabc"}) {
    EXPECT_FALSE(Spell(ids, other, vocabulary)) << other;
  }
}

TEST(SaveSlab, AnyFieldOfTheNamespaceChangesTheKey) {
  const ByteVocabulary vocabulary;
  const Sha256Digest key = KeyOf(ToyNamespace(), IdsOf("abc"), vocabulary);
  forward::CacheNamespace other = ToyNamespace();
  other.quant += "x";
  EXPECT_NE(KeyOf(other, IdsOf("abc"), vocabulary), key);
  other = ToyNamespace();
  other.ctx_params_hash = Sha256Of("x");
  EXPECT_NE(KeyOf(other, IdsOf("abc"), vocabulary), key);
  other = ToyNamespace();
  other.model_fp = Sha256Of("x");
  EXPECT_NE(KeyOf(other, IdsOf("abc"), vocabulary), key);
}

TEST(SaveSlab, BuildingStopsWhenItIsGivenUp) {
  StateSnapshot snapshot = SnapshotOf(IdsOf("abcdef"));
  SlabDraft draft = Draft(snapshot);
  const std::atomic<bool> cancel{true};
  EXPECT_EQ(BuildSlab(std::move(draft), std::move(snapshot), Write(1), 1, Facts(), cancel)
                .status()
                .code(),
            absl::StatusCode::kCancelled);
}

TEST(SaveSlab, TheEngineSaysBitsTypeAndWhetherStateCanBeCut) {
  EngineInfo info;
  info.quant = "q4_1/kv-f16";
  info.kv_dtype = slab::DType::kF16;
  info.config.context_length = 77;
  info.config.layer_kinds = {model::LayerKind::kKeyValue, model::LayerKind::kKeyValue};
  SlabFacts facts = SlabFactsOf(info);
  EXPECT_EQ(facts.quant_bits, 4);
  EXPECT_EQ(facts.kv_dtype, slab::DType::kF16);
  EXPECT_EQ(facts.context_length, 77u);
  EXPECT_TRUE(facts.can_be_cut);
  info.config.layer_kinds[1] = model::LayerKind::kRecurrent;
  info.quant = "toy";
  facts = SlabFactsOf(info);
  EXPECT_FALSE(facts.can_be_cut);
  EXPECT_EQ(facts.quant_bits, 0);
}

}  // namespace
}  // namespace kvmesh::shard

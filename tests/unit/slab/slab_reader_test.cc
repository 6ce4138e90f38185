#include "common/slab/reader.h"

#include <gtest/gtest.h>

#include <string>

#include "common/slab/writer.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::slab {
namespace {

using testing::MakeRandomSlab;
using testing::RandomSlab;

// Remembers how many bytes were asked for.
class CountingSource final : public ByteSource {
 public:
  explicit CountingSource(absl::string_view bytes) : source_(bytes) {}
  uint64_t size() const override { return source_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    read_ += out.size();
    return source_.ReadAt(offset, out);
  }
  uint64_t read() const { return read_; }

 private:
  MemorySource source_;
  mutable uint64_t read_ = 0;
};

void ExpectRoundTrip(const RandomSlab& slab) {
  const MemorySource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->meta().token_ids, slab.meta.token_ids);
  EXPECT_EQ(reader->meta().text, slab.meta.text);
  EXPECT_EQ(reader->meta().key, slab.meta.key);
  EXPECT_EQ(reader->meta().write_id, slab.meta.write_id);
  EXPECT_EQ(reader->meta().last_output, slab.meta.last_output);
  EXPECT_EQ(reader->meta().cut_points, slab.meta.cut_points);
  const LayerRange layers = reader->meta().header.layers;
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    const auto state = reader->ReadLayer(layer);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(*state, slab.layers[layer - layers.begin]) << "layer " << layer;
  }
  EXPECT_TRUE(reader->VerifyPayload().ok());
}

TEST(SlabReader, RandomStatesOfEveryKindComeBack) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    ExpectRoundTrip(
        MakeRandomSlab({.seed = seed,
                        .layers = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed) + 6},
                        .token_count = static_cast<uint32_t>(1 + seed * 13 % 200),
                        .mixed_kinds = true,
                        .last_output = seed % 2 == 0}));
  }
}

TEST(SlabReader, LayoutsOfOneToAHundredLayersComeBack) {
  for (uint32_t count = 1; count <= 100; ++count) {
    SCOPED_TRACE(count);
    ExpectRoundTrip(MakeRandomSlab({.seed = count,
                                    .layers = {7, 7 + count},
                                    .token_count = 5,
                                    .mixed_kinds = count % 2 == 0}));
  }
}

TEST(SlabReader, RegionsOfManyPiecesComeBack) {
  ExpectRoundTrip(MakeRandomSlab({.layers = {0, 2}, .token_count = 700, .row_values = 600}));
}

TEST(SlabReader, AWindowOfOneTokenHasRegionsWithoutRows) {
  ExpectRoundTrip(
      MakeRandomSlab({.layers = {0, 3}, .token_count = 9, .window = 1, .mixed_kinds = true}));
}

TEST(SlabReader, ReadingUpToACutPointYieldsTheFirstRowsOfKAndOfV) {
  const RandomSlab slab =
      MakeRandomSlab({.seed = 4, .layers = {2, 5}, .token_count = 700, .row_values = 600});
  const MemorySource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok());
  ASSERT_FALSE(reader->meta().cut_points.empty());
  for (size_t i = 0; i < reader->meta().cut_points.size(); i += 7) {
    const uint32_t tokens = reader->meta().cut_points[i].token_count;
    for (uint32_t layer = 2; layer < 5; ++layer) {
      const std::string& whole = slab.layers[layer - 2];
      const uint64_t half = whole.size() / 2;
      const uint64_t wanted = half / 700 * tokens;
      const auto prefix = reader->ReadLayerPrefix(layer, tokens);
      ASSERT_TRUE(prefix.ok()) << prefix.status();
      EXPECT_EQ(*prefix, whole.substr(0, wanted) + whole.substr(half, wanted)) << tokens;
    }
  }
}

TEST(SlabReader, ACutReadsOnlyThePiecesThatHoldIt) {
  const RandomSlab slab =
      MakeRandomSlab({.seed = 3, .layers = {0, 1}, .token_count = 1000, .row_values = 2048});
  const CountingSource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok());
  const uint64_t before = source.read();
  ASSERT_TRUE(reader->ReadLayerPrefix(0, 16).ok());
  // 16 rows of K lie in the first piece, those of V in one or two further ones.
  EXPECT_LE(source.read() - before, 3 * kPieceBytes);
}

TEST(SlabReader, StateThatCannotBeCutIsRefusedShortAndGivenWhole) {
  const RandomSlab slab =
      MakeRandomSlab({.layers = {0, 3}, .token_count = 70, .mixed_kinds = true});
  const MemorySource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(reader->ReadLayerPrefix(0, 69).ok());  // key/value
  EXPECT_EQ(reader->ReadLayerPrefix(1, 69).status().code(),
            absl::StatusCode::kFailedPrecondition);  // a window that has dropped tokens
  EXPECT_EQ(reader->ReadLayerPrefix(2, 69).status().code(),
            absl::StatusCode::kFailedPrecondition);  // recurrent
  EXPECT_TRUE(reader->ReadLayerPrefix(2, 70).ok());
  EXPECT_EQ(reader->ReadLayerPrefix(0, 71).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reader->ReadLayerPrefix(0, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reader->ReadLayer(3).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SlabReader, AWindowThatHasDroppedNothingCanBeCut) {
  const RandomSlab slab =
      MakeRandomSlab({.layers = {0, 2}, .token_count = 31, .window = 32, .mixed_kinds = true});
  const MemorySource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(reader->ReadLayerPrefix(1, 30).ok());
}

TEST(SlabReader, RewrittenUseTouchesNoCrc) {
  RandomSlab slab = MakeRandomSlab({});
  slab.bytes.replace(kHitCountOffset, 4, EncodeHitCount(0xFFFFFFFF));
  slab.bytes.replace(kLastUsedOffset, 8, EncodeLastUsed(0x0102030405060708));
  const MemorySource source(slab.bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->meta().header.hit_count, 0xFFFFFFFFU);
  EXPECT_EQ(reader->meta().header.last_used_time_s, 0x0102030405060708U);
  EXPECT_TRUE(reader->VerifyPayload().ok());
}

TEST(SlabWriter, GivesViewsOfTheCallersState) {
  const std::string state(2 * 4 * 10 * 8, 'k');
  auto writer = SlabWriter::Create(testing::RandomMeta(1, {0, 1}, 10));
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->AddRegion(StateKind::kKeyValue, DType::kF32, 0, {state}).ok());
  const auto image = writer->Finish();
  ASSERT_TRUE(image.ok()) << image.status();
  bool found = false;
  for (absl::string_view part : image->Parts()) found |= part.data() == state.data();
  EXPECT_TRUE(found);
}

TEST(SlabWriter, RefusesWhatNoReaderWouldTake) {
  const std::string state(2 * 4 * 10 * 8, 'k');
  const auto finish = [&](SlabMeta meta, StateKind kind, uint32_t first, absl::string_view bytes) {
    auto writer = SlabWriter::Create(std::move(meta));
    if (!writer.ok()) return writer.status().code();
    const absl::Status added = writer->AddRegion(kind, DType::kF32, first, {bytes});
    return added.ok() ? writer->Finish().status().code() : added.code();
  };
  const SlabMeta meta = testing::RandomMeta(1, {0, 1}, 10);
  EXPECT_EQ(finish(meta, StateKind::kKeyValue, 0, state), absl::StatusCode::kOk);
  EXPECT_EQ(finish(meta, StateKind::kKeyValue, 1, state), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish(meta, StateKind::kKeyValue, 0, absl::string_view(state).substr(4)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish(meta, StateKind::kKeyValue, 0, ""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish(meta, StateKind::kRecurrent, 9, state), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish(testing::RandomMeta(1, {0, 2}, 10), StateKind::kKeyValue, 0, state),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finish(testing::RandomMeta(1, {0, 1}, 0), StateKind::kKeyValue, 0, state),
            absl::StatusCode::kInvalidArgument);
  SlabMeta inside = meta;
  inside.cut_points = {
      {.token_count = 4, .text_bytes = 8}};  // between the two bytes of a character
  EXPECT_EQ(finish(inside, StateKind::kKeyValue, 0, state), absl::StatusCode::kInvalidArgument);
  SlabMeta behind = meta;
  behind.cut_points = {{.token_count = 9, .text_bytes = 20}};
  EXPECT_EQ(finish(behind, StateKind::kKeyValue, 0, state), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvmesh::slab

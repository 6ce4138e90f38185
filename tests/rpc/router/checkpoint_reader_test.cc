// What a router makes of a store's answer with head, meta section and trailer of a slab.
#include "services/router/grpc/checkpoint_reader.h"

#include <gtest/gtest.h>

#include "common/slab/format.h"
#include "services/router/grpc/meta_codec.h"
#include "tests/testing/fake_tokenizer.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::router {
namespace {

constexpr size_t kVocabulary = 50'000;  // of random slabs

class CheckpointReaderTest : public ::testing::Test {
 protected:
  CheckpointReaderTest() : slab_(testing::MakeRandomSlab({})) {
    const slab::SlabMeta& meta = slab_.meta;
    std::vector<std::string> pieces(kVocabulary);
    for (size_t i = 0; i < meta.token_ids.size(); ++i) {
      pieces[meta.token_ids[i]] = meta.text.substr(2 * i, 2);  // two bytes a token
    }
    tokenizer_.emplace(std::move(pieces));
    effect_.cache_namespace = {
        .model_fp = *Sha256Digest::FromBytes(meta.key_namespace.model_fp, "model_fp"),
        .quant = meta.key_namespace.quant,
        .ctx_params_hash = *Sha256Digest::FromBytes(meta.key_namespace.ctx_params, "ctx_params")};
    effect_.slab = {.key = meta.key,
                    .layers = meta.header.layers,
                    .write_id = meta.write_id,
                    .tokens_sha256 = meta.tokens_sha256};
    effect_.cut_tokens = 40;
    effect_.cut_text_bytes = 80;
    effect_.prompt = std::make_shared<const PromptText>(
        MakePromptText({meta.token_ids.begin(), meta.token_ids.begin() + 50}, *tokenizer_));
    const std::string& file = slab_.bytes;
    header_.set_size_bytes(file.size());
    answer_ = file.substr(0, slab::kHeadBytes + meta.meta_bytes) +
              file.substr(file.size() - slab::kTrailerBytes);
  }
  absl::StatusOr<CheckpointRead> Read() const {
    return ReadMetaSection(effect_, header_, answer_, *tokenizer_);
  }

  const testing::RandomSlab slab_;
  std::optional<testing::FakeTokenizer> tokenizer_;
  ReadCheckpoint effect_;
  v1::GetHeader header_;
  std::string answer_;
};

TEST_F(CheckpointReaderTest, ASoundSlabIsJoinedAtTheCutPoint) {
  const absl::StatusOr<CheckpointRead> read = Read();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->seam.stored_tokens, 40u);
  EXPECT_EQ(read->seam.ids, effect_.prompt->ids);
  EXPECT_TRUE(read->has_output_row);
}

TEST_F(CheckpointReaderTest, AnAnswerThatIsCutOrFlippedAnywhereIsABadSlab) {
  const std::string sound = answer_;
  for (size_t length = 0; length < sound.size(); length += 97) {
    answer_ = sound.substr(0, length);
    EXPECT_TRUE(absl::IsDataLoss(Read().status())) << length;
  }
  for (size_t at = slab::kHeaderBytes; at < sound.size(); at += 97) {
    answer_ = sound;
    answer_[at] = static_cast<char>(answer_[at] ^ 1);
    EXPECT_TRUE(absl::IsDataLoss(Read().status())) << at;
  }
}

TEST_F(CheckpointReaderTest, ASlabOfAnotherNameIsABadSlab) {
  const ReadCheckpoint right = effect_;
  effect_.slab.write_id.mutable_data()[0] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  effect_ = right;
  effect_.slab.tokens_sha256.mutable_data()[0] ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  effect_ = right;
  effect_.slab.layers.end += 1;
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  effect_ = right;
  effect_.cache_namespace.quant = "other";
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
  effect_ = right;
  effect_.cut_tokens = slab_.meta.token_ids.size() + 1;
  EXPECT_TRUE(absl::IsDataLoss(Read().status()));
}

TEST(MetaCodec, AnAnswerThatNoArbiterShouldGiveIsInternal) {
  v1::LookupResponse hit;
  hit.set_found(true);
  hit.set_token_count(10);
  hit.set_text_bytes(20);
  hit.mutable_row()->set_token_count(10);
  hit.mutable_row()->set_tokens_sha256(std::string(32, 'x'));
  EXPECT_TRUE(DecodeLookup(hit, LeaseId(), 20).ok());
  EXPECT_TRUE(absl::IsInternal(DecodeLookup(hit, LeaseId(), 19).status()));
  hit.set_token_count(11);  // beyond its row
  EXPECT_TRUE(absl::IsInternal(DecodeLookup(hit, LeaseId(), 20).status()));
  hit.set_token_count(10);
  hit.mutable_row()->set_tokens_sha256("short");
  EXPECT_TRUE(absl::IsInternal(DecodeLookup(hit, LeaseId(), 20).status()));
  hit.set_found(false);
  EXPECT_FALSE(DecodeLookup(hit, LeaseId(), 20)->has_value());
}

}  // namespace
}  // namespace kvmesh::router

// Fingerprints: what changes them, what does not, and the cache that saves reading the weights
// twice.
#include "common/model/digests.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/model/digest_cache.h"
#include "tests/testing/test_data.h"
#include "tests/unit/model/model_builder.h"

namespace kvmesh::model {
namespace {

namespace fs = std::filesystem;
using kvmesh::testing::ReadWholeFile;

// The user's cache lies in the test's own folder.
class Digests : public ::testing::Test {
 protected:
  Digests() { setenv("XDG_CACHE_HOME", (user_.path() / "cache").c_str(), 1); }

  ModelDigests Of(const TinyFolder& model, LayerRange range = {0, 2}) {
    return OfPath(folder_.WriteModel(model), range);
  }
  static ModelDigests OfPath(const std::string& path, LayerRange range = {0, 2}) {
    const auto opened = Model::Open(path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    const auto digests = (*opened)->Digests(range);
    EXPECT_TRUE(digests.ok()) << digests.status();
    return *digests;
  }
  static ModelDigests WithChangedTensor(const std::string& name) {
    const TempFolder folder;
    std::string bytes = SafetensorsBytes(TinyLlama().tensors);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    const auto json = nlohmann::json::parse(bytes.substr(8, length));
    bytes[8 + length + json[name]["data_offsets"][1].get<uint64_t>() - 1] ^= 1;
    folder.Write("config.json", TinyLlama().config.dump());
    folder.Write("model.safetensors", bytes);
    return OfPath(folder.path().string());
  }

  TempFolder user_;
  TempFolder folder_;
};

TEST_F(Digests, OneBitOfATensorChangesTheDigestOfItsPartAlone) {
  const ModelDigests before = Of(TinyLlama());
  const ModelDigests layer = WithChangedTensor("model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(layer.layers[0], before.layers[0]);
  EXPECT_NE(layer.layers[1], before.layers[1]);
  EXPECT_EQ(layer.head, before.head);
  EXPECT_EQ(layer.embedding, before.embedding);
  const ModelDigests head = WithChangedTensor("lm_head.weight");
  EXPECT_NE(head.head, before.head);
  EXPECT_EQ(head.layers, before.layers);
  EXPECT_EQ(head.embedding, before.embedding);
}

TEST_F(Digests, ATiedHeadDigestCoversTheEmbedding) {
  TinyFolder model = TinyLlama();
  model.config["tie_word_embeddings"] = true;
  model.tensors.erase("lm_head.weight");
  const ModelDigests before = Of(model);
  model.tensors["model.embed_tokens.weight"].dtype = "BF16";
  const ModelDigests after = Of(model);
  EXPECT_NE(after.embedding, before.embedding);
  EXPECT_NE(after.head, before.head);
  EXPECT_EQ(after.layers, before.layers);
}

TEST_F(Digests, ARangesDigestsAreThoseOfTheWholeModelAndOfNothingElse) {
  const ModelDigests whole = Of(TinyLlama());
  const ModelDigests first = OfPath(folder_.path().string(), {0, 1});
  EXPECT_EQ(first.layers, std::vector<Sha256Digest>{whole.layers[0]});
  EXPECT_EQ(first.embedding, whole.embedding);
  EXPECT_TRUE(first.head.is_zero());
  const ModelDigests second = OfPath(folder_.path().string(), {1, 2});
  EXPECT_EQ(second.layers, std::vector<Sha256Digest>{whole.layers[1]});
  EXPECT_TRUE(second.embedding.is_zero());
  EXPECT_EQ(second.head, whole.head);
  EXPECT_EQ(second.config, whole.config);
  const auto model = Model::Open(folder_.path().string());
  EXPECT_FALSE((*model)->Digests({1, 1}).ok());
  EXPECT_FALSE((*model)->Digests({0, 3}).ok());
}

TEST_F(Digests, ATiedTailHasTheEmbeddingToo) {
  TinyFolder model = TinyLlama();
  model.config["tie_word_embeddings"] = true;
  model.tensors.erase("lm_head.weight");
  const ModelDigests whole = Of(model);
  EXPECT_EQ(Of(model, {1, 2}).embedding, whole.embedding);
  EXPECT_EQ(Of(model, {1, 2}).head, whole.head);
  EXPECT_TRUE(Of(model, {0, 1}).head.is_zero());
}

TEST_F(Digests, ConfigCoversWhatChangesStateOrEndAndNotTheContextLimit) {
  const ModelDigests before = Of(TinyLlama());
  const std::vector<std::pair<std::string, nlohmann::json>> changes = {
      {"rope_theta", 20000.0},
      {"rms_norm_eps", 1e-6},
      {"eos_token_id", {2, 3}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}};
  for (const auto& [key, value] : changes) {
    TinyFolder model = TinyLlama();
    model.config[key] = value;
    EXPECT_NE(Of(model).config, before.config) << key;
  }
  TinyFolder longer = TinyLlama();
  longer.config["max_position_embeddings"] = 128;
  EXPECT_EQ(Of(longer).config, before.config);
}

TEST_F(Digests, TokenizerCoversItsFilesAndAGgufsTokenizerKeys) {
  const ModelDigests none = Of(TinyLlama());
  folder_.Write("tokenizer.json", "{}");
  const ModelDigests some = Of(TinyLlama());
  EXPECT_NE(some.tokenizer, none.tokenizer);
  folder_.Write("chat_template.jinja", "x");
  EXPECT_NE(Of(TinyLlama()).tokenizer, some.tokenizer);

  const ModelDigests gguf = OfPath(folder_.Write("a.gguf", TinyGguf().Bytes()));
  GgufBuilder other_token = TinyGguf();
  other_token.SetStrings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "i"});
  EXPECT_NE(OfPath(folder_.Write("b.gguf", other_token.Bytes())).tokenizer, gguf.tokenizer);
  GgufBuilder other_name = TinyGguf();
  other_name.SetString("general.name", "another");
  const ModelDigests same = OfPath(folder_.Write("c.gguf", other_name.Bytes()));
  EXPECT_EQ(same.tokenizer, gguf.tokenizer);
  EXPECT_EQ(same.layers, gguf.layers);
}

TEST_F(Digests, FingerprintCoversEveryPartInOrder) {
  const ModelDigests d = Of(TinyLlama());
  const auto fingerprint = [&](const std::vector<Sha256Digest>& layers) {
    return ModelFingerprint(layers, d.embedding, d.head, d.config, d.tokenizer);
  };
  EXPECT_NE(fingerprint(d.layers), fingerprint({d.layers[1], d.layers[0]}));
  EXPECT_NE(fingerprint(d.layers),
            ModelFingerprint(d.layers, d.head, d.embedding, d.config, d.tokenizer));
  EXPECT_EQ(fingerprint(d.layers),
            Sha256Of(absl::StrCat(d.layers[0].bytes(), d.layers[1].bytes(), d.embedding.bytes(),
                                  d.head.bytes(), d.config.bytes(), d.tokenizer.bytes())));
}

// A cache file whose digests are recognisably not the weights' own.
class DigestCaches : public Digests {
 protected:
  DigestCaches() : path_(folder_.WriteModel(TinyLlama())) {}

  DigestCache CacheOfFolder() const {
    const auto map = MappedFile::Open(path_ + "/model.safetensors");
    return DigestCache(path_, {(*map)->identity()});
  }
  fs::path Beside() const { return folder_.path() / ".kvmesh-digests.json"; }

  std::string path_;
  const std::map<std::string, Sha256Digest> marked_ = {{"layer.0", Sha256Of("marked")}};
};

TEST_F(DigestCaches, WhatIsCachedIsNotReadAgain) {
  CacheOfFolder().Write(marked_);
  EXPECT_EQ(CacheOfFolder().Read(), marked_);
  EXPECT_EQ(OfPath(path_).layers[0], Sha256Of("marked"));
}

TEST_F(DigestCaches, ARunAddsItsPartsToThoseAlreadyThere) {
  CacheOfFolder().Write(marked_);
  OfPath(path_, {1, 2});
  const auto parts = CacheOfFolder().Read();
  EXPECT_EQ(parts.size(), 3u);  // layers 0 and 1, head
  EXPECT_EQ(parts.at("layer.0"), Sha256Of("marked"));
}

TEST_F(DigestCaches, ACacheOfOtherFilesIsIgnored) {
  CacheOfFolder().Write(marked_);
  folder_.WriteModel(TinyLlama());  // same bytes, another time of change
  EXPECT_TRUE(CacheOfFolder().Read().empty());
  EXPECT_NE(OfPath(path_).layers[0], Sha256Of("marked"));
}

TEST_F(DigestCaches, ATornOrEditedCacheIsIgnored) {
  CacheOfFolder().Write(marked_);
  const std::string sound = ReadWholeFile(Beside());
  ASSERT_FALSE(sound.empty());
  for (size_t size = 0; size + 1 < sound.size(); size += 17) {  // the last byte is a line's end
    folder_.Write(Beside().filename(), sound.substr(0, size));
    EXPECT_TRUE(CacheOfFolder().Read().empty()) << size;
  }
  for (size_t i = 0; i < sound.size(); i += 17) {
    std::string edited = sound;
    edited[i] ^= 1;
    folder_.Write(Beside().filename(), edited);
    const auto parts = CacheOfFolder().Read();
    EXPECT_TRUE(parts.empty() || parts == marked_) << i;
  }
}

TEST_F(DigestCaches, WhereTheModelsFolderCannotBeWrittenTheUsersCacheServes) {
  fs::create_directory(Beside());  // a folder in the file's place: also root cannot write it
  fs::create_directory(Beside() / "taken");
  CacheOfFolder().Write(marked_);
  EXPECT_EQ(CacheOfFolder().Read(), marked_);
  EXPECT_TRUE(fs::exists(user_.path() / "cache" / "kvmesh"));
}

TEST_F(DigestCaches, AFileChangedAMomentAgoIsNotCached) {
  fs::last_write_time(folder_.path() / "model.safetensors", fs::file_time_type::clock::now());
  CacheOfFolder().Write(marked_);
  EXPECT_TRUE(CacheOfFolder().Read().empty());
}

TEST_F(DigestCaches, NoTemporaryFileStays) {
  OfPath(path_);
  for (const fs::path& file : kvmesh::testing::ListFolder(folder_.path())) {
    EXPECT_TRUE(file == Beside() || file.extension() == ".json" ||
                file.extension() == ".safetensors")
        << file;
  }
}

}  // namespace
}  // namespace kvmesh::model

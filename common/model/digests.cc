#include "common/model/digests.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/model/digest_cache.h"

namespace kvmesh::model {
namespace {

constexpr size_t kHashThreads = 2;  // hashing shares the machine with other shards that start
constexpr size_t kPieceBytes = 16 << 20;
constexpr char kEmbeddingPart[] = "embedding";
constexpr char kHeadPart[] = "head";

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void UpdateField(absl::string_view field, Sha256* hash) {
  hash->UpdateU64(field.size()).Update(field);
}

// One part of the model, by the name under which the cache knows it.
struct Part {
  std::string name;
  std::vector<const Tensor*> tensors = {};
  Sha256Digest digest = {};
};

void HashTensor(const Tensor& tensor, Sha256* hash) {
  UpdateField(tensor.name, hash);
  UpdateField(InfoOf(tensor.type).name, hash);
  hash->UpdateU64(tensor.shape.size());
  for (const uint64_t dimension : tensor.shape) hash->UpdateU64(dimension);
  hash->UpdateU64(tensor.data.size());
  for (size_t begin = 0; begin < tensor.data.size(); begin += kPieceBytes) {
    hash->Update(AsText(tensor.data.subspan(begin, kPieceBytes)));
  }
}

void HashParts(std::vector<Part*> parts) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      Sha256 hash;
      for (const Tensor* tensor : parts[i]->tensors) HashTensor(*tensor, &hash);
      parts[i]->digest = hash.Digest();
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(kHashThreads, parts.size()); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

// What a shard with `range` has: its layers, the embedding, the head (with the embedding when that
// is its matrix).
std::vector<Part> PartsOf(const ModelTensors& tensors, bool tied, LayerRange range) {
  std::vector<Part> parts;
  parts.reserve(range.size() + 2);
  for (uint32_t layer = range.begin; layer < range.end; ++layer) {
    Part part{.name = absl::StrCat("layer.", layer)};
    for (const RoleTensor& each : tensors.layers[layer]) part.tensors.push_back(&each.tensor);
    parts.push_back(std::move(part));
  }
  const bool last = range.end == tensors.layers.size();
  Part embedding{.name = kEmbeddingPart};
  Part head{.name = kHeadPart};
  for (const RoleTensor& each : tensors.global) {
    const bool is_embedding = each.role == WeightRole::kEmbedding;
    if (is_embedding) embedding.tensors.push_back(&each.tensor);
    if (!is_embedding || tied) head.tensors.push_back(&each.tensor);
  }
  if (range.begin == 0 || (last && tied)) parts.push_back(std::move(embedding));
  if (last) parts.push_back(std::move(head));
  return parts;
}

void FillParts(const std::string& path, const WeightFiles& files, std::vector<Part>* parts) {
  std::vector<FileIdentity> identities;
  for (const auto& map : files.maps) identities.push_back(map->identity());
  const DigestCache cache(path, std::move(identities));
  std::map<std::string, Sha256Digest> known = cache.Read();
  std::vector<Part*> unknown;
  for (Part& part : *parts) {
    const auto it = known.find(part.name);
    if (it == known.end()) {
      unknown.push_back(&part);
    } else {
      part.digest = it->second;
    }
  }
  if (unknown.empty()) return;
  HashParts(unknown);
  known = cache.Read();  // another shard of this model may have added its layers meanwhile
  for (const Part* part : unknown) known[part->name] = part->digest;
  cache.Write(known);
}

}  // namespace

Sha256Digest TokenizerDigest(const ModelFiles& files) {
  Sha256 hash;
  for (const auto& [name, bytes] : files.tokenizer_parts) {
    UpdateField(name, &hash);
    UpdateField(AsText(bytes), &hash);
  }
  return hash.Digest();
}

Sha256Digest ConfigDigest(const ModelConfig& config) {
  Sha256 hash;
  UpdateField("kvmesh config 1", &hash);
  UpdateField(ArchitectureName(config.architecture), &hash);
  for (const uint32_t number :
       {config.layer_count, config.hidden_size, config.intermediate_size, config.head_count,
        config.kv_head_count, config.head_dim, config.vocab_size, config.rope.dims,
        uint32_t{config.tied_embedding}, uint32_t{config.qkv_bias},
        static_cast<uint32_t>(config.rope.scaling)}) {
    hash.UpdateU32(number);
  }
  for (const double number :
       {config.rms_norm_eps, config.rope.theta, config.rope.factor, config.rope.low_freq_factor,
        config.rope.high_freq_factor, config.rope.original_context}) {
    hash.UpdateU64(std::bit_cast<uint64_t>(number));
  }
  hash.UpdateU64(config.rope.freq_factors.size());
  for (const float factor : config.rope.freq_factors) {
    hash.UpdateU32(std::bit_cast<uint32_t>(factor));
  }
  for (const LayerKind kind : config.layer_kinds) hash.UpdateU32(static_cast<uint32_t>(kind));
  hash.UpdateU64(config.eos_token_ids.size());
  for (const uint32_t id : config.eos_token_ids) hash.UpdateU32(id);
  return hash.Digest();
}

absl::StatusOr<ModelDigests> ComputeDigests(const std::string& path, const ModelFiles& files,
                                            const ModelTensors& tensors, LayerRange range) {
  if (range.begin >= range.end || range.end > tensors.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("layers ", range.begin, ":", range.end,
                                                   " of a model of ", tensors.layers.size()));
  }
  std::vector<Part> parts = PartsOf(tensors, files.config.tied_embedding, range);
  FillParts(path, files.weights, &parts);
  ModelDigests digests;
  digests.range = range;
  digests.layers.reserve(range.size());
  for (const Part& part : parts) {
    if (part.name == kEmbeddingPart) {
      digests.embedding = part.digest;
    } else if (part.name == kHeadPart) {
      digests.head = part.digest;
    } else {
      digests.layers.push_back(part.digest);
    }
  }
  digests.config = ConfigDigest(files.config);
  digests.tokenizer = TokenizerDigest(files);
  return digests;
}

}  // namespace kvmesh::model

#include "tests/testing/toy_engine.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/slab/content_key.h"
#include "services/shard/core/sampler.h"

namespace kvmesh::testing {
namespace {

// splitmix64's finaliser (Steele, Lea, Flood, 2014).
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Holds its hash after every token, so that it can be cut anywhere: a canonical row is one hash.
class ToyLayerState final : public shard::LayerState {
 public:
  explicit ToyLayerState(const ToyOptions& options) : options_(options) {}
  model::LayerKind kind() const override { return model::LayerKind::kKeyValue; }
  uint64_t bytes() const override {
    const uint64_t blocks = (tokens() + options_.block_tokens - 1) / options_.block_tokens;
    return blocks * options_.block_tokens * options_.bytes_per_token;
  }
  uint64_t tokens() const override { return hashes_.size(); }
  uint64_t row_bytes() const override { return sizeof(uint64_t); }

  absl::StatusOr<std::unique_ptr<shard::LayerState>> Snapshot(uint64_t tokens) const override {
    if (tokens > hashes_.size()) return absl::OutOfRangeError("more tokens than are held");
    auto snapshot = std::make_unique<ToyLayerState>(options_);
    snapshot->hashes_ = hashes_;
    snapshot->hashes_.resize(tokens);
    return snapshot;
  }
  absl::Status CopyRows(uint64_t begin, uint64_t end, absl::Span<uint8_t> keys,
                        absl::Span<uint8_t> values) const override {
    if (begin > end || end > hashes_.size()) {
      return absl::OutOfRangeError("more tokens than are held");
    }
    const size_t bytes = (end - begin) * row_bytes();
    if (keys.size() != bytes || values.size() != bytes) {
      return absl::InvalidArgumentError("room of another size");
    }
    if (bytes == 0) return absl::OkStatus();
    std::memcpy(keys.data(), hashes_.data() + begin, bytes);
    std::memcpy(values.data(), hashes_.data() + begin, bytes);
    return absl::OkStatus();
  }
  absl::Status AppendRows(absl::Span<const uint8_t> keys,
                          absl::Span<const uint8_t> values) override {
    if (keys != values || keys.size() % row_bytes() != 0) {
      return absl::InvalidArgumentError("rows that no toy layer wrote");
    }
    for (size_t at = 0; at < keys.size(); at += row_bytes()) {
      uint64_t hash = 0;
      std::memcpy(&hash, keys.data() + at, sizeof(hash));
      hashes_.push_back(hash);
    }
    return absl::OkStatus();
  }

  // Takes in one row and gives the layer's output for it.
  uint64_t Run(uint64_t row, uint64_t position, uint32_t layer) {
    const uint64_t before = hashes_.empty() ? 0 : hashes_.back();
    hashes_.push_back(Mix(Mix(before, row), Mix(position, layer)));
    return Mix(hashes_.back(), layer);
  }

 private:
  const ToyOptions& options_;
  std::vector<uint64_t> hashes_;
};

// A row carries its hash in its first four numbers, 16 bits each: exact in f32.
void WriteRow(uint64_t hash, float* row) {
  for (int i = 0; i < 4; ++i) row[i] = static_cast<float>((hash >> (16 * i)) & 0xffff);
}

absl::StatusOr<uint64_t> ReadRow(const float* row) {
  uint64_t hash = 0;
  for (int i = 0; i < 4; ++i) {
    const bool is_part = row[i] >= 0 && row[i] <= 65535 && row[i] == std::floor(row[i]);
    if (!is_part) return absl::InternalError("a hidden row that no toy layer wrote");
    hash |= static_cast<uint64_t>(row[i]) << (16 * i);
  }
  return hash;
}

}  // namespace

ToyEngine::ToyEngine(ToyOptions options) : options_(std::move(options)) {
  info_.config.layer_count = options_.layer_count;
  info_.config.hidden_size = kToyHiddenSize;
  info_.config.intermediate_size = kToyHiddenSize;
  info_.config.head_count = 1;
  info_.config.kv_head_count = 1;
  info_.config.head_dim = kToyHiddenSize;
  info_.config.vocab_size = kToyVocabSize;
  info_.config.context_length = options_.context_length;
  info_.config.layer_kinds.assign(options_.layer_count, model::LayerKind::kKeyValue);
  info_.config.eos_token_ids = {kToyEos};
  info_.layers = options_.layers;
  info_.quant = kToyQuant;
  info_.numerics_id = kToyNumericsId;
  info_.supports_kv_cache = options_.supports_kv_cache;
  info_.block_tokens = options_.block_tokens;
  info_.state_bytes = {{.kind = model::LayerKind::kKeyValue,
                        .layers = options_.layers.size(),
                        .bytes_per_token = options_.bytes_per_token * options_.layers.size()}};
}

shard::SessionState ToyEngine::NewState() const {
  shard::SessionState state(options_.layer_count);
  for (uint32_t layer = options_.layers.begin; layer < options_.layers.end; ++layer) {
    state[layer] = std::make_unique<ToyLayerState>(options_);
  }
  return state;
}

void ToyEngine::Step(absl::Span<shard::StepItem> batch) {
  for (shard::StepItem& item : batch) item.status = RunItem(item);
}

absl::StatusOr<std::vector<uint64_t>> ToyEngine::InputRows(const shard::StepItem& item) const {
  std::vector<uint64_t> rows;
  rows.reserve(item.tokens.size());
  for (size_t i = 0; i < item.tokens.size(); ++i) {
    if (options_.layers.begin == 0) {
      rows.push_back(Mix(item.tokens[i], 1));
      continue;
    }
    if (item.hidden.size() != item.tokens.size() * kToyHiddenSize) {
      return absl::InternalError(
          absl::StrCat(item.hidden.size(), " hidden numbers for ", item.tokens.size(), " rows"));
    }
    auto row = ReadRow(item.hidden.data() + i * kToyHiddenSize);
    if (!row.ok()) return row.status();
    rows.push_back(*row);
  }
  return rows;
}

absl::Status ToyEngine::RunItem(shard::StepItem& item) {
  auto rows = InputRows(item);
  if (!rows.ok()) return rows.status();
  shard::SessionState throwaway;
  if (item.state == nullptr) throwaway = NewState();
  shard::SessionState& state = item.state == nullptr ? throwaway : *item.state;
  for (uint32_t layer = options_.layers.begin; layer < options_.layers.end; ++layer) {
    if (options_.on_layer) options_.on_layer(layer);
    if (item.cancel != nullptr && item.cancel->load()) return absl::CancelledError("cancelled");
    auto& layer_state = static_cast<ToyLayerState&>(*state[layer]);
    for (size_t i = 0; i < rows->size(); ++i) {
      (*rows)[i] = layer_state.Run((*rows)[i], item.past_len + i, layer);
    }
  }
  item.hidden_out.assign(rows->size() * kToyHiddenSize, 0);
  for (size_t i = 0; i < rows->size(); ++i) {
    WriteRow((*rows)[i], item.hidden_out.data() + i * kToyHiddenSize);
  }
  if (!item.want_logits) return absl::OkStatus();
  auto last = absl::MakeConstSpan(item.hidden_out).last(kToyHiddenSize);
  auto logits = Logits(last);
  if (!logits.ok()) return logits.status();
  item.logits = std::move(*logits);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ToyEngine::Logits(absl::Span<const float> hidden) {
  if (options_.layers.end != options_.layer_count) {
    return absl::FailedPreconditionError("the range does not end with the last layer");
  }
  auto row = ReadRow(hidden.data());
  if (!row.ok()) return row.status();
  std::vector<float> logits(kToyVocabSize);
  for (uint32_t id = 0; id < kToyVocabSize; ++id) {
    logits[id] = static_cast<float>(Mix(*row, id) >> 44) / 131072.0f;  // [0, 8)
  }
  logits[kToyEos] = -100;  // only a bias ends a text
  return logits;
}

std::string ToyVocabulary::Piece(uint32_t id) const {
  if (id == kToyEos) return "<eos>";
  return id < kToyEos ? std::string(1, static_cast<char>(' ' + id)) : std::string();
}

std::string ToyVocabulary::KeyBytes(uint32_t id) const {
  std::string bytes;
  if (id == kToyEos) {
    slab::AppendControlToken(id, &bytes);
  } else {
    slab::AppendPiece(Piece(id), &bytes);
  }
  return bytes;
}

std::string ToyText(absl::Span<const uint32_t> ids) {
  std::string text;
  for (uint32_t id : ids) text += ToyVocabulary().Piece(id);
  return text;
}

absl::StatusOr<std::vector<uint32_t>> ToyIds(absl::string_view text) {
  std::vector<uint32_t> ids;
  for (char c : text) {
    if (c < ' ' || c > '~') return absl::InvalidArgumentError("a byte outside the vocabulary");
    ids.push_back(static_cast<uint32_t>(c - ' '));
  }
  return ids;
}

std::vector<uint32_t> ToyGenerate(const std::vector<uint32_t>& prompt, uint32_t max_tokens,
                                  const forward::SamplingOptions& sampling, uint32_t layer_count) {
  ToyEngine engine({.layer_count = layer_count, .layers = {0, layer_count}});
  shard::SessionState state = engine.NewState();
  std::vector<uint32_t> history = prompt;
  std::vector<uint32_t> output;
  uint64_t held = 0;
  while (output.size() < max_tokens) {
    shard::StepItem item;
    item.state = &state;
    item.past_len = held;
    item.tokens = absl::MakeConstSpan(history).subspan(held);
    item.want_logits = true;
    engine.Step(absl::MakeSpan(&item, 1));
    held = history.size();
    auto token = shard::Sample(item.logits, sampling, history, static_cast<uint32_t>(prompt.size()),
                               history.size());
    if (!token.ok()) return {};
    history.push_back(token->token_id);
    output.push_back(token->token_id);
    if (token->token_id == kToyEos) break;
  }
  return output;
}

}  // namespace kvmesh::testing

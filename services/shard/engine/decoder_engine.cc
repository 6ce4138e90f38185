#include "services/shard/engine/decoder_engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/rope.h"

namespace kvmesh::shard {
namespace {

constexpr uint32_t kThreadsMax = 1024;

slab::DType SlabTypeOf(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF16:
      return slab::DType::kF16;
    case KvDtype::kBF16:
      return slab::DType::kBF16;
    case KvDtype::kF32:
      return slab::DType::kF32;
  }
  return slab::DType::kF32;
}

EngineInfo Describe(const model::Model& model, LayerRange layers, const EngineOptions& options,
                    const KeyValueLayout& layout, const std::string& numerics_id) {
  EngineInfo info;
  info.config = model.config();
  info.layers = layers;
  info.quant = absl::StrCat(model.weight_types(), "/kv-", NameOf(options.kv_dtype));
  info.kv_dtype = SlabTypeOf(options.kv_dtype);
  info.numerics_id = numerics_id;
  info.supports_kv_cache = !options.disable_kv_cache;
  info.block_tokens = KeyValueState::kBlockTokens;
  StateBytes state_bytes;
  state_bytes.layers = layers.size();
  state_bytes.bytes_per_token = layout.block_bytes() / KeyValueState::kBlockTokens * layers.size();
  info.state_bytes = {state_bytes};
  info.weight_bytes = model.WeightBytes(layers);
  return info;
}

}  // namespace

absl::Status CheckEngineRequest(const model::ModelConfig& config, LayerRange layers,
                                const EngineOptions& options) {
  if (layers.begin >= layers.end || layers.end > config.layer_count) {
    return absl::InvalidArgumentError(absl::StrCat("layers ", layers.begin, ":", layers.end,
                                                   " of a model of ", config.layer_count));
  }
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    if (config.layer_kinds[layer] != model::LayerKind::kKeyValue) {
      return absl::UnimplementedError(
          absl::StrCat("layer ", layer, " is not one of standard attention"));
    }
  }
  if (options.threads > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " compute threads, the limit is ", kThreadsMax));
  }
  return absl::OkStatus();
}

absl::Status Guarded(absl::FunctionRef<absl::Status()> function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for this step");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("engine: ", error.what()));
  }
}

KeyValueState& DecoderEngine::Session::StateOf(uint32_t layer) const {
  return spare != nullptr ? *spare : static_cast<KeyValueState&>(*(*item->state)[layer]);
}

bool DecoderEngine::Session::cancelled() const {
  return item->cancel != nullptr && item->cancel->load(std::memory_order_relaxed);
}

DecoderEngine::DecoderEngine(const model::Model& model, LayerRange layers,
                             const EngineOptions& options, const std::string& numerics_id,
                             std::unique_ptr<LayerBackend> backend)
    : layout_{.kv_heads = model.config().kv_head_count,
              .head_dim = model.config().head_dim,
              .dtype = options.kv_dtype},
      pool_(BlockPool::Make(layout_.block_bytes())),
      backend_(std::move(backend)),
      frequencies_(RopeFrequencies(model.config().rope)) {
  info_ = Describe(model, layers, options, layout_, numerics_id);
  info_.weight_bytes_held = backend_->weight_bytes();
}

SessionState DecoderEngine::NewState() const {
  SessionState state(info_.config.layer_count);
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    state[layer] = std::make_unique<KeyValueState>(layout_, pool_);
  }
  return state;
}

absl::Status DecoderEngine::Check(const StepItem& item) const {
  const size_t rows = item.tokens.size();
  if (rows == 0) return absl::InvalidArgumentError("a step without rows");
  const size_t numbers = embeds() ? 0 : rows * info_.config.hidden_size;
  if (item.hidden.size() != numbers) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden has ", item.hidden.size(), " numbers, not ", numbers));
  }
  for (const uint32_t token : item.tokens) {
    if (token >= info_.config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token id ", token, " is outside the ", info_.config.vocab_size, " of the vocabulary"));
    }
  }
  if (item.want_logits && !has_head()) {
    return absl::FailedPreconditionError("logits wanted of a range without the last layer");
  }
  if (item.state != nullptr) return CheckState(item);
  return item.past_len == 0 ? absl::OkStatus()
                            : absl::InvalidArgumentError("past_len without a state");
}

absl::Status DecoderEngine::CheckState(const StepItem& item) const {
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    const auto* state = layer < item.state->size()
                            ? dynamic_cast<const KeyValueState*>((*item.state)[layer].get())
                            : nullptr;
    if (state == nullptr) {
      return absl::InternalError(absl::StrCat("no key-value state for layer ", layer));
    }
    if (state->tokens() != item.past_len) {
      return absl::InternalError(absl::StrCat("layer ", layer, " holds ", state->tokens(),
                                              " tokens, past_len is ", item.past_len));
    }
  }
  return absl::OkStatus();
}

// Everything that one item alone may fail at, memory for its state included, happens here.
absl::Status DecoderEngine::Begin(StepItem& item) {
  KVMESH_RETURN_IF_ERROR(Check(item));
  const size_t rows = item.tokens.size();
  const size_t hidden_size = info_.config.hidden_size;
  item.hidden_out.resize(rows * hidden_size);
  if (item.want_logits) item.logits.resize(info_.config.vocab_size);
  Session session{.item = &item, .first_angle = angles_.size(), .spare = nullptr};
  if (item.state == nullptr) {
    if (spares_.size() == sessions_.size()) {
      spares_.push_back(std::make_unique<KeyValueState>(layout_, pool_));
    }
    session.spare = spares_[sessions_.size()].get();
    session.spare->Reserve(rows);
  } else {
    for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
      session.StateOf(layer).Reserve(item.past_len + rows);
    }
  }
  const size_t angles = 2 * frequencies_.size();
  angles_.resize(session.first_angle + rows * angles);
  sessions_.push_back(session);
  for (size_t row = 0; row < rows; ++row) {
    float* hidden = item.hidden_out.data() + row * hidden_size;
    if (embeds()) {
      backend_->Embed(item.tokens[row], hidden);
    } else {
      std::copy_n(item.hidden.data() + row * hidden_size, hidden_size, hidden);
    }
    RopeAngles(frequencies_, item.past_len + row,
               angles_.data() + session.first_angle + row * angles);
  }
  return absl::OkStatus();
}

void DecoderEngine::RunLayers() {
  const size_t angles = 2 * frequencies_.size();
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    std::erase_if(sessions_, [](const Session& session) {
      if (!session.cancelled()) return false;
      session.item->status = absl::CancelledError("cancelled between layers");
      return true;
    });
    if (sessions_.empty()) return;
    rows_.clear();
    for (const Session& session : sessions_) {
      for (size_t row = 0; row < session.item->tokens.size(); ++row) {
        rows_.push_back({.hidden = session.item->hidden_out.data() + row * info_.config.hidden_size,
                         .cos_sin = angles_.data() + session.first_angle + row * angles,
                         .position = session.item->past_len + row,
                         .state = &session.StateOf(layer)});
      }
    }
    backend_->RunLayer(layer, rows_);
  }
}

// In one product for all items that want them.
void DecoderEngine::ComputeLogits() {
  const size_t hidden_size = info_.config.hidden_size;
  const size_t vocab_size = info_.config.vocab_size;
  size_t wanted = 0;
  for (const Session& session : sessions_) {
    if (!session.item->want_logits) continue;
    last_rows_.resize(std::max(last_rows_.size(), (wanted + 1) * hidden_size));
    const std::vector<float>& rows = session.item->hidden_out;
    std::copy(rows.end() - static_cast<ptrdiff_t>(hidden_size), rows.end(),
              last_rows_.begin() + static_cast<ptrdiff_t>(wanted * hidden_size));
    ++wanted;
  }
  if (wanted == 0) return;
  logits_.resize(std::max(logits_.size(), wanted * vocab_size));
  backend_->Logits(last_rows_.data(), wanted, logits_.data());
  const float* from = logits_.data();
  for (const Session& session : sessions_) {
    if (!session.item->want_logits) continue;
    std::copy_n(from, vocab_size, session.item->logits.data());
    from += vocab_size;
  }
}

void DecoderEngine::Step(absl::Span<StepItem> batch) {
  sessions_.clear();
  angles_.clear();
  for (StepItem& item : batch) {
    item.status = Guarded([&] { return Begin(item); });
    if (!item.status.ok()) {
      std::erase_if(sessions_, [&](const Session& session) { return session.item == &item; });
    }
  }
  const absl::Status run = Guarded([&] {
    RunLayers();
    ComputeLogits();
    return absl::OkStatus();
  });
  for (const Session& session : sessions_) {
    StepItem& item = *session.item;
    item.status = run;
    if (!run.ok() || item.state == nullptr) continue;
    for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
      session.StateOf(layer).set_tokens(item.past_len + item.tokens.size());
    }
  }
}

absl::StatusOr<std::vector<float>> DecoderEngine::Logits(absl::Span<const float> hidden) {
  if (!has_head()) {
    return absl::FailedPreconditionError("logits wanted of a range without the last layer");
  }
  if (hidden.size() != info_.config.hidden_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden has ", hidden.size(), " numbers, not ", info_.config.hidden_size));
  }
  std::vector<float> logits;
  KVMESH_RETURN_IF_ERROR(Guarded([&] {
    logits.resize(info_.config.vocab_size);
    backend_->Logits(hidden.data(), 1, logits.data());
    return absl::OkStatus();
  }));
  return logits;
}

}  // namespace kvmesh::shard

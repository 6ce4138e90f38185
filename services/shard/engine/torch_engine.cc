#include "services/shard/engine/torch_engine.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/cpu_count.h"
#include "common/base/status_macros.h"
#include "services/shard/engine/decoder_layer.h"
#include "services/shard/engine/rope.h"
#include "services/shard/engine/torch_gemm.h"

namespace kvmesh::shard {
namespace {

using model::WeightRole;

constexpr uint32_t kThreadsMax = 1024;

KeyValueLayout LayoutOf(const model::ModelConfig& config) {
  return {.kv_heads = config.kv_head_count, .head_dim = config.head_dim, .dtype = KvDtype::kF32};
}

// Runs `function`; what it throws becomes a status.
template <typename Function>
absl::Status Guarded(const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for this step");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("engine: ", error.what()));
  }
}

// A live item of a batch.
struct Session {
  StepItem* item;
  std::vector<float> cos_sin;            // [rows, rope dims]
  std::unique_ptr<KeyValueState> spare;  // of a stateless item: serves every layer in turn

  KeyValueState& StateOf(uint32_t layer) const {
    return spare != nullptr ? *spare : static_cast<KeyValueState&>(*(*item->state)[layer]);
  }
  bool cancelled() const {
    return item->cancel != nullptr && item->cancel->load(std::memory_order_relaxed);
  }
};

class TorchEngine final : public Engine {
 public:
  TorchEngine(EngineInfo info, uint32_t threads)
      : info_(std::move(info)),
        frequencies_(RopeFrequencies(info_.config.rope)),
        pool_(threads, UseTorchOnThisThreadOnly),
        context_(pool_) {}

  absl::Status Load(const model::Model& model);

  const EngineInfo& info() const override { return info_; }
  SessionState NewState() const override;
  void Step(absl::Span<StepItem> batch) override;
  absl::StatusOr<std::vector<float>> Logits(absl::Span<const float> hidden) override;

 private:
  bool embeds() const { return info_.layers.begin == 0; }
  bool has_head() const { return info_.layers.end == info_.config.layer_count; }

  absl::Status Check(const StepItem& item) const;
  absl::StatusOr<Session> Begin(StepItem& item) const;
  void Embed(StepItem& item) const;
  void RunLayer(uint32_t layer, std::vector<Session>& sessions);
  void Finish(Session& session);

  EngineInfo info_;
  std::vector<float> frequencies_;  // [rope dims / 2]
  ComputePool pool_;
  ComputeContext context_;
  LayerScratch scratch_;
  WeightMatrix embedding_;          // first stage
  std::vector<float> output_norm_;  // last stage
  WeightMatrix output_;             // last stage
  std::vector<DecoderLayer> layers_;
};

absl::Status TorchEngine::Load(const model::Model& model) {
  if (embeds()) {
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kEmbedding));
    embedding_ = WeightMatrix(tensor, 0);
  }
  if (has_head()) {
    KVMESH_ASSIGN_OR_RETURN(output_norm_, LoadVector(model, WeightRole::kOutputNorm));
    KVMESH_ASSIGN_OR_RETURN(const model::Tensor tensor, model.Find(WeightRole::kOutput));
    output_ = WeightMatrix(tensor, 0);
  }
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    KVMESH_ASSIGN_OR_RETURN(DecoderLayer loaded, DecoderLayer::Load(model, layer));
    layers_.push_back(std::move(loaded));
  }
  return absl::OkStatus();
}

SessionState TorchEngine::NewState() const {
  SessionState state(info_.config.layer_count);
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    state[layer] = std::make_unique<KeyValueState>(LayoutOf(info_.config));
  }
  return state;
}

absl::Status TorchEngine::Check(const StepItem& item) const {
  const size_t rows = item.tokens.size();
  if (rows == 0) return absl::InvalidArgumentError("a step without rows");
  if (embeds() ? !item.hidden.empty() : item.hidden.size() != rows * info_.config.hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat("hidden has ", item.hidden.size(),
                                                   " numbers, not ",
                                                   embeds() ? 0 : rows * info_.config.hidden_size));
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
  if (item.state == nullptr) {
    return item.past_len == 0 ? absl::OkStatus()
                              : absl::InvalidArgumentError("past_len without a state");
  }
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
absl::StatusOr<Session> TorchEngine::Begin(StepItem& item) const {
  KVMESH_RETURN_IF_ERROR(Check(item));
  const size_t rows = item.tokens.size();
  item.hidden_out.assign(item.hidden.begin(), item.hidden.end());
  item.hidden_out.resize(rows * info_.config.hidden_size);
  if (item.want_logits) item.logits.resize(info_.config.vocab_size);

  Session session{.item = &item};
  session.cos_sin.resize(rows * 2 * frequencies_.size());
  for (size_t row = 0; row < rows; ++row) {
    RopeAngles(frequencies_, item.past_len + row,
               session.cos_sin.data() + row * 2 * frequencies_.size());
  }
  if (item.state == nullptr) {
    session.spare = std::make_unique<KeyValueState>(LayoutOf(info_.config));
    session.spare->Reserve(rows);
    return session;
  }
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    session.StateOf(layer).Reserve(item.past_len + rows);
  }
  return session;
}

void TorchEngine::Embed(StepItem& item) const {
  for (size_t row = 0; row < item.tokens.size(); ++row) {
    embedding_.WidenRow(item.tokens[row], item.hidden_out.data() + row * info_.config.hidden_size);
  }
}

void TorchEngine::RunLayer(uint32_t layer, std::vector<Session>& sessions) {
  std::vector<LayerRow> rows;
  for (const Session& session : sessions) {
    for (size_t row = 0; row < session.item->tokens.size(); ++row) {
      rows.push_back({.hidden = session.item->hidden_out.data() + row * info_.config.hidden_size,
                      .cos_sin = session.cos_sin.data() + row * 2 * frequencies_.size(),
                      .position = session.item->past_len + row,
                      .state = &session.StateOf(layer)});
    }
  }
  layers_[layer - info_.layers.begin].Run(context_, scratch_, rows);
}

void TorchEngine::Finish(Session& session) {
  StepItem& item = *session.item;
  if (item.want_logits) {
    auto logits = Logits(absl::MakeConstSpan(item.hidden_out)
                             .subspan((item.tokens.size() - 1) * info_.config.hidden_size));
    item.status = logits.status();
    if (!logits.ok()) return;
    item.logits = *std::move(logits);
  }
  if (item.state == nullptr) return;
  for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
    session.StateOf(layer).set_tokens(item.past_len + item.tokens.size());
  }
}

void TorchEngine::Step(absl::Span<StepItem> batch) {
  UseTorchOnThisThreadOnly();
  std::vector<Session> sessions;
  for (StepItem& item : batch) {
    item.status = Guarded([&]() -> absl::Status {
      KVMESH_ASSIGN_OR_RETURN(Session session, Begin(item));
      if (embeds()) Embed(item);
      sessions.push_back(std::move(session));
      return absl::OkStatus();
    });
  }
  const absl::Status run = Guarded([&]() -> absl::Status {
    for (uint32_t layer = info_.layers.begin; layer < info_.layers.end; ++layer) {
      std::erase_if(sessions, [](const Session& session) {
        if (!session.cancelled()) return false;
        session.item->status = absl::CancelledError("cancelled between layers");
        return true;
      });
      if (sessions.empty()) break;
      RunLayer(layer, sessions);
    }
    return absl::OkStatus();
  });
  for (Session& session : sessions) {
    if (!run.ok()) {
      session.item->status = run;
      continue;
    }
    Finish(session);
  }
}

absl::StatusOr<std::vector<float>> TorchEngine::Logits(absl::Span<const float> hidden) {
  if (!has_head()) {
    return absl::FailedPreconditionError("logits wanted of a range without the last layer");
  }
  if (hidden.size() != info_.config.hidden_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("hidden has ", hidden.size(), " numbers, not ", info_.config.hidden_size));
  }
  std::vector<float> logits;
  KVMESH_RETURN_IF_ERROR(Guarded([&] {
    std::vector<float> normed(hidden.size());
    logits.resize(info_.config.vocab_size);
    context_.kernels.rms_norm(hidden.data(), output_norm_.data(), hidden.size(),
                              static_cast<float>(info_.config.rms_norm_eps), normed.data());
    const Product products[] = {{&output_, logits.data()}};
    Multiply(context_, normed.data(), 1, products);
    return absl::OkStatus();
  }));
  return logits;
}

EngineInfo DescribeEngine(const model::Model& model, LayerRange layers,
                          const TorchEngineOptions& options) {
  const model::ModelConfig& config = model.config();
  StateBytes state_bytes;
  state_bytes.layers = layers.size();
  state_bytes.bytes_per_token =
      LayoutOf(config).block_bytes() / KeyValueState::kBlockTokens * layers.size();
  EngineInfo info;
  info.config = config;
  info.layers = layers;
  info.quant = absl::StrCat(model.weight_types(), "/kv-f32");
  info.numerics_id = "torch-f32";
  info.supports_kv_cache = !options.disable_kv_cache;
  info.block_tokens = KeyValueState::kBlockTokens;
  info.state_bytes = {state_bytes};
  info.weight_bytes = model.WeightBytes(layers);
  info.weight_bytes_held = info.weight_bytes;  // mapped once, never copied
  return info;
}

absl::Status CheckRange(const model::ModelConfig& config, LayerRange layers) {
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
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeTorchEngine(const model::Model& model,
                                                        LayerRange layers,
                                                        const TorchEngineOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckRange(model.config(), layers));
  const uint32_t threads = options.threads != 0 ? options.threads : UsableCpuCount();
  if (threads > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(threads, " compute threads, the limit is ", kThreadsMax));
  }
  std::unique_ptr<Engine> made;
  KVMESH_RETURN_IF_ERROR(Guarded([&]() -> absl::Status {
    auto engine = std::make_unique<TorchEngine>(DescribeEngine(model, layers, options), threads);
    KVMESH_RETURN_IF_ERROR(engine->Load(model));
    made = std::move(engine);
    return absl::OkStatus();
  }));
  return made;
}

}  // namespace kvmesh::shard

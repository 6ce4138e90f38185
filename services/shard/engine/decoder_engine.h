// The engine of the Llama and Qwen2 families, whatever computes its layers: checks items, grows
// states, hands the rows of all sessions to the layers in turn, collects outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/layer_range.h"
#include "common/model/model.h"
#include "services/shard/core/engine.h"
#include "services/shard/engine/key_value_state.h"
#include "services/shard/engine/layer_backend.h"
#include "services/shard/engine/step_profile.h"

namespace kvmesh::shard {

struct EngineOptions {
  uint32_t threads = 0;  // compute threads, the caller of Step included; 0: UsableCpuCount()
  std::string numerics;  // as NumericsNamed, or "torch"; empty: the machine's best
  KvDtype kv_dtype = KvDtype::kF16;
  bool disable_kv_cache = false;  // info().supports_kv_cache is then false
  std::string device = "cpu";     // of libtorch
  std::string weights_cache;      // folder of packed weights; empty: none
  // Told, in a sentence, why weights are packed anew though there is a cache.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
  // Called now and then while weights are packed: how many of the layers are.
  std::function<void(uint32_t done, uint32_t of)> on_layer_loaded;
  StepProfile* profile = nullptr;  // of own kernels: must outlive the engine; null: none is kept
};

// InvalidArgument: `layers` is empty or reaches beyond the model; too many threads. Unimplemented:
// a layer of a kind other than kKeyValue, by its number.
absl::Status CheckEngineRequest(const model::ModelConfig& config, LayerRange layers,
                                const EngineOptions& options);

// Runs `function`; what it throws becomes a status: ResourceExhausted (no memory) or Internal.
absl::Status Guarded(absl::FunctionRef<absl::Status()> function);

class DecoderEngine final : public Engine {
 public:
  // `backend` computes `layers` of `model`.
  DecoderEngine(const model::Model& model, LayerRange layers, const EngineOptions& options,
                const std::string& numerics_id, std::unique_ptr<LayerBackend> backend);

  const EngineInfo& info() const override { return info_; }
  SessionState NewState() const override;
  void Step(absl::Span<StepItem> batch) override;
  absl::StatusOr<std::vector<float>> Logits(absl::Span<const float> hidden) override;
  uint64_t kv_saturated() const override { return backend_->kv_saturated(); }

 private:
  // A live item of a batch.
  struct Session {
    StepItem* item;
    size_t first_angle;    // in angles_
    KeyValueState* spare;  // of a stateless item: serves every layer in turn
    KeyValueState& StateOf(uint32_t layer) const;
    bool cancelled() const;
  };

  bool embeds() const { return info_.layers.begin == 0; }
  bool has_head() const { return info_.layers.end == info_.config.layer_count; }
  absl::Status Check(const StepItem& item) const;
  absl::Status CheckState(const StepItem& item) const;
  absl::Status Begin(StepItem& item);
  void RunLayers();
  void ComputeLogits();

  EngineInfo info_;
  KeyValueLayout layout_;
  std::shared_ptr<BlockPool> pool_;  // shared: with the states, which may outlive the engine
  std::unique_ptr<LayerBackend> backend_;
  std::vector<float> frequencies_;  // [rope dims / 2]

  // Of the step that runs; kept so that steps allocate nothing.
  std::vector<Session> sessions_;
  std::vector<float> angles_;  // [rows, rope dims]
  std::vector<LayerRow> rows_;
  std::vector<std::unique_ptr<KeyValueState>> spares_;
  std::vector<float> last_rows_;  // [items that want logits, hidden_size]
  std::vector<float> logits_;     // [items that want logits, vocab_size]
};

}  // namespace kvmesh::shard

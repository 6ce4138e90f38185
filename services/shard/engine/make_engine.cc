#include "services/shard/engine/make_engine.h"

#include "absl/strings/str_cat.h"
#include "services/shard/engine/native_engine.h"
#include "services/shard/engine/torch_engine.h"

namespace kvmesh::shard {

absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const model::Model& model, LayerRange layers,
                                                   const EngineOptions& options) {
  if (options.numerics == kTorchNumerics) return MakeTorchEngine(model, layers, options);
  if (options.device != "cpu") {
    return absl::InvalidArgumentError(absl::StrCat("device \"", options.device,
                                                   "\" needs numerics ", kTorchNumerics,
                                                   ": own kernels run on the processor"));
  }
  return MakeNativeEngine(model, layers, options);
}

}  // namespace kvmesh::shard

#include "services/shard/engine/make_engine.h"
#include "services/shard/engine/numerics.h"
#include "services/shard/engine/torch_engine.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {

std::vector<std::string> TestNumerics() {
  std::vector<std::string> ids;
  for (const Numerics& numerics : NumericsOfThisMachine()) ids.push_back(numerics.id);
  ids.emplace_back(kTorchNumerics);
  return ids;
}

absl::StatusOr<std::unique_ptr<Engine>> MakeTestEngine(const model::Model& model, LayerRange layers,
                                                       const EngineOptions& options) {
  return MakeEngine(model, layers, options);
}

}  // namespace kvmesh::shard

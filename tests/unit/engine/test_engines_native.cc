#include "services/shard/engine/native_engine.h"
#include "services/shard/engine/numerics.h"
#include "tests/unit/engine/test_engines.h"

namespace kvmesh::shard {

std::vector<std::string> TestNumerics() {
  std::vector<std::string> ids;
  for (const Numerics& numerics : NumericsOfThisMachine()) ids.push_back(numerics.id);
  return ids;
}

absl::StatusOr<std::unique_ptr<Engine>> MakeTestEngine(const model::Model& model, LayerRange layers,
                                                       const EngineOptions& options) {
  return MakeNativeEngine(model, layers, options);
}

}  // namespace kvmesh::shard

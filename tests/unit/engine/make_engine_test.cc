// Which engine flags lead to.
#include "services/shard/engine/make_engine.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/shard/engine/numerics.h"
#include "tests/testing/test_data.h"

namespace kvmesh::shard {
namespace {

using ::testing::HasSubstr;

class MakeEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(testing::TestDataRoot() / "models" / "llama-tied");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  absl::StatusOr<std::unique_ptr<Engine>> Make(const EngineOptions& options) {
    return MakeEngine(*model_, {0, 1}, options);
  }
  std::unique_ptr<model::Model> model_;
};

TEST_F(MakeEngineTest, TheDefaultIsTheBestOfTheMachineWithKeysAndValuesInF16) {
  const auto engine = Make({});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->info().numerics_id, NumericsOfThisMachine().front().id);
  EXPECT_EQ((*engine)->info().quant, "f32/kv-f16");
}

TEST_F(MakeEngineTest, EveryKvTypeIsNamedInQuant) {
  for (const KvDtype dtype : {KvDtype::kF16, KvDtype::kBF16, KvDtype::kF32}) {
    const auto engine = Make({.kv_dtype = dtype});
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_THAT((*engine)->info().quant, HasSubstr(std::string(NameOf(dtype))));
  }
}

TEST_F(MakeEngineTest, NumericsOfNobodyAreRefusedByName) {
  const auto engine = Make({.numerics = "fma33"});
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(engine.status().message(), HasSubstr("fma33"));
}

TEST_F(MakeEngineTest, DevicesBelongToTorch) {
  const auto native = Make({.device = "cuda"});
  EXPECT_EQ(native.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(native.status().message(), HasSubstr("torch"));
  EXPECT_TRUE(Make({.numerics = "torch", .device = "cpu"}).ok());
  const auto unknown = Make({.numerics = "torch", .device = "abacus"});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument) << unknown.status();
  EXPECT_THAT(unknown.status().message(), HasSubstr("abacus"));
}

// A libtorch that has the device takes it, one that lacks it says so.
TEST_F(MakeEngineTest, ADeviceThatTorchLacksIsRefusedByASentence) {
  const auto engine = Make({.numerics = "torch", .device = "cuda"});
  if (engine.ok()) return;
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(engine.status().message(), HasSubstr("\"cuda\""));
}

TEST_F(MakeEngineTest, TorchHasNoPackedWeightsToCache) {
  EXPECT_EQ(Make({.numerics = "torch", .weights_cache = "/tmp"}).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kvmesh::shard

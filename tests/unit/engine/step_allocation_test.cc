// A step allocates nothing once the engine is warm: every allocation of the program is counted. A
// program of its own, because it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "gtest/gtest.h"
#include "services/shard/engine/decoder_engine.h"
#include "services/shard/engine/native_engine.h"
#include "tests/testing/test_data.h"

namespace {

std::atomic<size_t> allocations{0};

void* Allocate(size_t bytes, size_t alignment) {
  allocations.fetch_add(1);
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
void* operator new[](size_t bytes) {
  return Allocate(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return Allocate(bytes, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(bytes, nothrow);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace kvmesh::shard {
namespace {

// A session that decodes, and how many allocations its steps made.
struct Decoding {
  SessionState state;
  std::vector<uint32_t> token = {5};
  StepItem item;

  Decoding(Engine& engine, const std::vector<uint32_t>& prompt) : state(engine.NewState()) {
    item.state = &state;
    item.tokens = prompt;
    item.want_logits = true;
    engine.Step({&item, 1});
    EXPECT_TRUE(item.status.ok()) << item.status;
    item.past_len = prompt.size();
    item.tokens = token;
  }
};

size_t AllocationsOf(Engine& engine, absl::Span<StepItem> batch, int steps) {
  const size_t before = allocations.load();
  for (int step = 0; step < steps; ++step) {
    engine.Step(batch);
    for (StepItem& item : batch) {
      if (!item.status.ok()) return static_cast<size_t>(-1);
      ++item.past_len;
    }
  }
  return allocations.load() - before;
}

class StepAllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto model = model::Model::Open(testing::TestDataRoot() / "models" / "llama-256-bf16");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto engine = MakeNativeEngine(*model_, {0, model_->config().layer_count}, {.threads = 2});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Engine> engine_;
};

// Positions 65 to 127 lie in one block.
TEST_F(StepAllocationTest, DecodingInsideABlockAllocatesNothing) {
  Decoding session(*engine_, std::vector<uint32_t>(64, 3));
  EXPECT_GT(allocations.load(), 0u) << "nothing is counted";
  EXPECT_LT(AllocationsOf(*engine_, {&session.item, 1}, 1), static_cast<size_t>(-1));
  EXPECT_EQ(AllocationsOf(*engine_, {&session.item, 1}, 62), 0u);
}

TEST_F(StepAllocationTest, ABatchOfSessionsAllocatesNothing) {
  std::vector<std::unique_ptr<Decoding>> sessions;
  std::vector<StepItem> batch;
  for (size_t i = 0; i < 5; ++i) {
    sessions.push_back(
        std::make_unique<Decoding>(*engine_, std::vector<uint32_t>(270 + i, 3)));  // two chunks
    batch.push_back(sessions.back()->item);
  }
  EXPECT_LT(AllocationsOf(*engine_, absl::MakeSpan(batch), 1), static_cast<size_t>(-1));
  EXPECT_EQ(AllocationsOf(*engine_, absl::MakeSpan(batch), 40), 0u);
}

// A block and its place in the lists, for each layer.
TEST_F(StepAllocationTest, ANewBlockCostsAFewAllocationsForEachLayer) {
  Decoding session(*engine_, std::vector<uint32_t>(127, 3));
  EXPECT_LT(AllocationsOf(*engine_, {&session.item, 1}, 1), static_cast<size_t>(-1));
  const size_t made = AllocationsOf(*engine_, {&session.item, 1}, 1);
  EXPECT_GE(made, model_->config().layer_count);
  EXPECT_LE(made, 4 * model_->config().layer_count);
}

TEST_F(StepAllocationTest, StatelessStepsOfTheSameLengthAllocateNothing) {
  const std::vector<uint32_t> tokens(100, 3);
  StepItem item{.tokens = tokens, .want_logits = true};
  engine_->Step({&item, 1});
  ASSERT_TRUE(item.status.ok()) << item.status;
  const size_t before = allocations.load();
  engine_->Step({&item, 1});
  EXPECT_EQ(allocations.load() - before, 0u);
}

}  // namespace
}  // namespace kvmesh::shard

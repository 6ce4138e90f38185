// What loading a real model takes.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/model/model.h"
#include "gtest/gtest.h"
#include "services/shard/engine/machine_bounds.h"
#include "services/shard/engine/native_engine.h"
#include "tests/testing/test_data.h"
#include "tests/unit/engine/reference_data.h"

namespace kvmesh::shard {
namespace {

struct LoadMemory {
  uint64_t before = 0;  // bytes; the most until then
  uint64_t after = 0;
  uint64_t packed = 0;
};

// In a process of its own, so that nothing else has raised its peak.
void LoadAndTell(const std::string& path, int to) {
  LoadMemory memory;
  memory.before = PeakMemoryBytes();
  const auto model = model::Model::Open(path);
  if (!model.ok()) _exit(2);
  const auto engine =
      MakeNativeEngine(**model, {0, (*model)->config().layer_count}, {.threads = 2});
  if (!engine.ok()) _exit(3);
  memory.after = PeakMemoryBytes();
  memory.packed = (*engine)->info().weight_bytes_held;
  _exit(write(to, &memory, sizeof(memory)) == sizeof(memory) ? 0 : 4);
}

TEST(RealLoad, TheMostMemoryWhileLoadingIsAtMostAFifthMoreThanThePackedWeights) {
  const auto expected = testing::TestDataRoot() / "real" / "smollm2.json";
  if (!std::filesystem::exists(expected)) GTEST_SKIP() << expected << " is absent: passed over";
  const std::string path = ModelFile(ReadJson(expected)["gguf_file"]).string();
  ASSERT_TRUE(std::filesystem::exists(path)) << "Fetch the model with tools/lib/fetch_model.sh.";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) LoadAndTell(path, ends[1]);
  close(ends[1]);
  LoadMemory memory;
  const ssize_t got = read(ends[0], &memory, sizeof(memory));
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  ASSERT_EQ(WEXITSTATUS(status), 0);
  ASSERT_EQ(got, static_cast<ssize_t>(sizeof(memory)));
  ASSERT_GT(memory.before, 0u) << "the system does not say";
  EXPECT_GT(memory.packed, uint64_t{80} << 20);
  EXPECT_GE(memory.after - memory.before, memory.packed) << "the weights are not in memory";
  EXPECT_LE(static_cast<double>(memory.after - memory.before),
            1.2 * static_cast<double>(memory.packed));
}

}  // namespace
}  // namespace kvmesh::shard

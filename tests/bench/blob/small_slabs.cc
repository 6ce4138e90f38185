// Many small slabs: puts a second, and the scan at start-up.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_bridge.h"
#include "tests/bench/blob/bench_parts.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::bench {

void BenchSmall(const std::string& tier, int count) {
  constexpr int kThreads = 8;
  const Folder folder(tier);
  const auto blob = StartBlob(tier, folder);
  std::vector<slab::SlabMeta> metas;
  std::vector<rpc::SlabBytes> slabs;
  metas.reserve(count);
  slabs.reserve(count);
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    testing::RandomSlab made = testing::MakeSlabOfSize(1 + i, 56 << 10);
    bytes = made.bytes.size();
    metas.push_back(std::move(made.meta));
    slabs.push_back(rpc::SlabBytes::Of(std::move(made.bytes)));
  }
  std::atomic<int> next{0};
  const double start = Now();
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto channel = Connect(blob->address());
      for (int i = next++; i < count; i = next++) {
        Must(rpc::PutSlab(channel, HeaderOf(metas[i]), slabs[i], kTimeout).status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%-9s %d slabs of %lu bytes, %d at once: %.0f puts/s\n", tier.c_str(), count, bytes,
              kThreads, count / (Now() - start));
}

// Files written here, as the tier names them, so that the start alone is measured.
void BenchScan(int count) {
  const Folder folder("ram_file");
  const uint64_t empty_bytes = StartBlob("ram_file", folder)->ResidentBytes();
  size_t cut_points = 0;
  for (int i = 0; i < count; ++i) {
    const auto slab = testing::MakeSlabOfSize(1 + i, 4096);
    const std::string key = slab.meta.key.ToHex();
    cut_points = slab.meta.cut_points.size();
    std::ofstream(absl::StrCat(folder.path(), "/data/slabs/", key.substr(0, 2), "/", key, ".0-1.",
                               slab.meta.write_id.ToHex()),
                  std::ios::binary)
        << slab.bytes;
  }
  const auto blob = StartBlob("ram_file", folder);
  const auto stub = v1::BlobService::NewStub(Connect(blob->address()));
  grpc::ClientContext context;
  v1::BlobServiceGetStatsResponse stats;
  Must(rpc::FromGrpc(stub->GetStats(&context, {}, &stats)));
  std::printf(
      "start-up scan: %lu slabs verified in %.2f s (CPU %.2f s), files in memory; "
      "%.0f bytes of memory a slab of %zu inner cut points\n",
      stats.slabs(), blob->ready_seconds(), blob->CpuSeconds(),
      static_cast<double>(blob->ResidentBytes() - empty_bytes) / static_cast<double>(stats.slabs()),
      cut_points);
}

}  // namespace kvmesh::bench

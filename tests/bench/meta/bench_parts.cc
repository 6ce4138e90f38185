#include "tests/bench/meta/bench_parts.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"

namespace kvmesh::bench {
namespace {

std::string BinDir() {
  std::string path(PATH_MAX, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return std::filesystem::path(path).parent_path();
}

std::string ReadyFile(const char* name) {
  static std::atomic<int> number{0};
  return absl::StrCat(std::filesystem::temp_directory_path().string(), "/meta_bench.", getpid(),
                      ".", name, number.fetch_add(1));
}

std::unique_ptr<ServerProcess> Start(std::vector<std::string> command, const std::string& ready) {
  auto process = std::make_unique<ServerProcess>(command, ready);
  std::filesystem::remove(ready);
  return process;
}

}  // namespace

void Fail(const std::string& why) {
  std::fprintf(stderr, "meta_bench: %s\n", why.c_str());
  std::exit(1);
}

void AwaitTrue(const char* what, const std::function<bool()>& condition) {
  const double deadline = Now() + 600;
  while (!condition()) {
    if (Now() > deadline) Fail(absl::StrCat("gave up waiting for ", what));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  return Percentile(values, 0.5);
}

double Percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

const kvmesh::v1::CacheNamespace& CorpusNamespace() {
  static const kvmesh::v1::CacheNamespace kNamespace = [] {
    const slab::KeyNamespace& of = cli::ChatCorpus::key_namespace();
    kvmesh::v1::CacheNamespace proto;
    proto.set_model_fp(of.model_fp);
    proto.set_quant(of.quant);
    proto.set_ctx_params_hash(of.ctx_params);
    return proto;
  }();
  return kNamespace;
}

std::vector<kvmesh::v1::LookupRequest> RequestsOf(const cli::ChatCorpus& corpus, uint32_t bytes,
                                                  size_t count) {
  std::vector<kvmesh::v1::LookupRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    *requests[i].mutable_namespace_() = CorpusNamespace();
    requests[i].set_text(corpus.MakePrompt(i + 1, bytes).text);
  }
  return requests;
}

std::unique_ptr<ServerProcess> StartMeta(const std::vector<std::string>& flags) {
  const std::string ready = ReadyFile("meta");
  std::vector<std::string> command = {BinDir() + "/kvmesh-meta",
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--ready-file",
                                      ready,
                                      "--log-level",
                                      "2"};
  command.insert(command.end(), flags.begin(), flags.end());
  return Start(std::move(command), ready);
}

std::unique_ptr<ServerProcess> StartEcho() {
  const std::string ready = ReadyFile("echo");
  return Start({BinDir() + "/meta_bench", "--serve-echo", ready}, ready);
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  auto channel = rpc::MakeChannel(address);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(60))) {
    Fail("cannot connect to " + address);
  }
  return channel;
}

kvmesh::v1::MetaServiceGetStatsResponse StatsOf(kvmesh::v1::MetaService::Stub& stub) {
  kvmesh::v1::MetaServiceGetStatsResponse stats;
  grpc::ClientContext context;
  const grpc::Status status = stub.GetStats(&context, {}, &stats);
  if (!status.ok()) Fail("GetStats: " + status.error_message());
  return stats;
}

bool Serves(kvmesh::v1::MetaService::Stub& stub, uint64_t rows) {
  const auto stats = StatsOf(stub);
  return stats.rows() == rows && stats.stores_size() == 1 && stats.stores(0).state() == "SERVING";
}

}  // namespace kvmesh::bench

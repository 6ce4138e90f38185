// What the parts of the arbiter's bench share.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvmesh/v1/meta.grpc.pb.h"
#include "tests/bench/blob/server_process.h"
#include "tools/kvmesh/chat_corpus.h"

namespace kvmesh::bench {

// Ends the bench.
[[noreturn]] void Fail(const std::string& why);
// Ends the bench when it does not come true within ten minutes.
void AwaitTrue(const char* what, const std::function<bool()>& condition);
double Now();  // steady, in seconds
double Median(std::vector<double> values);
// Sorts in part; 0 for none.
double Percentile(std::vector<double>& values, double share);

const kvmesh::v1::CacheNamespace& CorpusNamespace();
// Lookups of prompts of so many bytes, each of which continues a row.
std::vector<kvmesh::v1::LookupRequest> RequestsOf(const cli::ChatCorpus& corpus, uint32_t bytes,
                                                  size_t count);

// A program beside the bench that writes its address to a file of its own.
std::unique_ptr<ServerProcess> StartMeta(const std::vector<std::string>& flags = {});
std::unique_ptr<ServerProcess> StartEcho();
// Connected when it returns; a connection of its own.
std::shared_ptr<grpc::Channel> Connect(const std::string& address);
kvmesh::v1::MetaServiceGetStatsResponse StatsOf(kvmesh::v1::MetaService::Stub& stub);
// Whether there are so many rows, in one store that serves.
bool Serves(kvmesh::v1::MetaService::Stub& stub, uint64_t rows);

// ---- the parts ----

struct PartOptions {
  uint32_t rows = 100'000;
  uint32_t prompt_bytes = 8192;
  int rounds = 5;
  double seconds = 3;  // of one measurement of a round
  int connections = 2;
  int in_flight = 8;  // on each connection
  double lookups_per_second = 1000;
  double cycles_per_second = 1000;
};

// Bytes that core and index allocate, by row and by inner cut point.
void BenchMemory(const PartOptions& options);
// Lookup beside Echo, in turn.
void BenchThroughput(const PartOptions& options);
// Lookups at a steady rate, with and without a writer, in turn.
void BenchWithWriter(const PartOptions& options);
// A store says all its rows, and comes back with none.
void BenchRebuild(const PartOptions& options);

}  // namespace kvmesh::bench

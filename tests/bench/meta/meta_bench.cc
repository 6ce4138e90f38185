// The arbiter: memory of its tables, its RPCs beside plain ones and beside a writer, its restart.
//
//   meta_bench [--part memory,throughput,writer,rebuild] [--rows N] [--rounds N] [--seconds S] …
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/bench/meta/bench_parts.h"
#include "tests/bench/meta/echo.h"

namespace kvmesh::bench {
namespace {

struct Flags {
  std::vector<std::string> parts = {"memory", "throughput", "writer", "rebuild"};
  PartOptions options;
  std::string commit = "unknown";
  std::string serve_echo;  // of the process that the bench starts
};

const std::map<std::string, void (*)(const PartOptions&)> kParts = {
    {"memory", BenchMemory},
    {"throughput", BenchThroughput},
    {"writer", BenchWithWriter},
    {"rebuild", BenchRebuild},
};

void AddFlags(CLI::App& app, Flags& flags) {
  PartOptions& options = flags.options;
  app.add_option("--part", flags.parts, "What to measure")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::IsMember(kParts));
  app.add_option("--rows", options.rows, "Rows of two slabs")
      ->capture_default_str()
      ->check(CLI::Range(1000U, 10'000'000U));
  app.add_option("--prompt-bytes", options.prompt_bytes, "Length of the prompts")
      ->capture_default_str()
      ->check(CLI::Range(6144U, 1U << 20));
  app.add_option("--rounds", options.rounds, "Rounds, of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--seconds", options.seconds, "Of each measurement of a round")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 600.0));
  app.add_option("--connections", options.connections, "Of the throughput's clients")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--in-flight", options.in_flight, "Calls under way on each connection")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--lookups-per-second", options.lookups_per_second, "Beside the writer")
      ->capture_default_str()
      ->check(CLI::Range(10.0, 100'000.0));
  app.add_option("--cycles-per-second", options.cycles_per_second,
                 "Of the writer: reserve, publish, evict")
      ->capture_default_str()
      ->check(CLI::Range(10.0, 100'000.0));
  app.add_option("--commit", flags.commit, "Printed with the figures");
  app.add_option("--serve-echo", flags.serve_echo, "Serve the echo; its address goes to this file");
}

int Main(int argc, char** argv) {
  // As in every process of the product.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Flags flags;
  CLI::App app("meta_bench");
  AddFlags(app, flags);
  CLI11_PARSE(app, argc, argv);
  if (!flags.serve_echo.empty()) {
    ServeEcho(flags.serve_echo);
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  double load = 0;
  getloadavg(&load, 1);
  std::printf("meta_bench, commit %s, %u processors, load %.1f before it began\n",
              flags.commit.c_str(), std::thread::hardware_concurrency(), load);
  for (const std::string& part : flags.parts) kParts.at(part)(flags.options);
  return 0;
}

}  // namespace
}  // namespace kvmesh::bench

int main(int argc, char** argv) {
  return kvmesh::bench::Main(argc, argv);
}

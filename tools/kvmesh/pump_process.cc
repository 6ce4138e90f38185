#include "tools/kvmesh/pump_process.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/pump.h"

namespace kvmesh::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Minutes(1);
constexpr absl::Duration kPollInterval = absl::Milliseconds(10);

}  // namespace

absl::StatusOr<PumpProcess> PumpProcess::Start(const std::string& folder, Interrupt& interrupt) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot create ", folder, ": ", error.message()));
  }
  const std::string ready = folder + "/pump.json";
  KVMESH_ASSIGN_OR_RETURN(Child server,
                          Child::Start({.name = "pump",
                                        .arguments = {ProgramFolder() + "/kvmesh", "bench", "pump",
                                                      "--ready-file", ready},
                                        .log_path = folder + "/pump.log"}));
  PumpProcess pump(std::move(server));
  const absl::Time until = absl::Now() + kStartTimeout;
  while (!std::filesystem::exists(ready, error)) {
    if (!pump.server_.front().Running()) {
      return absl::UnavailableError(pump.server_.front().HowItEnded());
    }
    if (absl::Now() > until) return absl::UnavailableError("the pump did not start");
    if (interrupt.WaitFor(kPollInterval)) return absl::CancelledError("interrupted");
  }
  std::ifstream in(ready);
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object()) return absl::UnavailableError(absl::StrCat(ready, " is no JSON object"));
  pump.address_ = json.value("address", "");
  return pump;
}

PumpProcess::~PumpProcess() {
  if (!server_.empty()) StopChildren(absl::MakeSpan(server_), absl::ZeroDuration());
}

absl::StatusOr<double> PumpProcess::Pull(int connections, uint64_t bytes) {
  while (channels_.size() < static_cast<size_t>(connections)) {
    channels_.push_back(rpc::MakeChannel(address_));
    if (!channels_.back()->WaitForConnected(std::chrono::system_clock::now() +
                                            std::chrono::seconds(10))) {
      return absl::UnavailableError(absl::StrCat("no connection to the pump at ", address_));
    }
  }
  std::vector<absl::Status> statuses(static_cast<size_t>(connections));
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    threads.reserve(statuses.size());
    for (size_t i = 0; i < statuses.size(); ++i) {
      threads.emplace_back([&, i] { statuses[i] = bench::PumpFrom(channels_[i], bytes); });
    }
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  for (const absl::Status& status : statuses) KVMESH_RETURN_IF_ERROR(status);
  return took.count();
}

void AddBenchPump(CLI::App& bench, Action* chosen) {
  auto ready_file = std::make_shared<std::string>();
  // Not for people: the server that `bench warm` starts.
  CLI::App* command = bench.add_subcommand("pump", "Serve the byte pump")->group("");
  command->add_option("--ready-file", *ready_file, "Its address goes there")->required();
  command->callback([=] {
    *chosen = [ready_file](Context& context) {
      return Report(bench::ServePump(*ready_file), context.json, false);
    };
  });
}

}  // namespace kvmesh::cli

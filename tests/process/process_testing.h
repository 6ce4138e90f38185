// For tests of the real programs: running one to its end, running one beside the test, and whole
// meshes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tests/testing/wait_until.h"
#include "tools/kvmesh/mesh_file.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::process_testing {

// build/<preset>/bin/NAME, from KVMESH_BIN_DIR.
std::string Program(const std::string& name);

// A tiny model with tokenizer and chat template; and the model of the main job, which tools/test.sh
// has fetched.
std::string TinyModel();
std::string RealModel();

using testing::WaitUntil;

// Waits until `what_is_left` names nothing; fails the test with what it names last.
void ExpectNothingLeft(const std::function<std::string()>& what_is_left);
// No generation runs, waits or closes: the arbiter has heard of all that the answers so far save.
bool IsIdle(const v1::GetStatusResponse& status);
// The first generation or live session that a router knows of; empty: none.
std::string WhatRuns(const v1::GetStatusResponse& status);

// `text` and English words after it, `bytes` in all; which words depends on `seed`.
std::string FilledText(std::string text, size_t seed, size_t bytes);

class TempDir {
 public:
  TempDir();
  ~TempDir();
  std::string path() const { return path_; }
  std::string File(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

// A program running beside the test; killed when the object goes.
class Process {
 public:
  // stdout and stderr go to files in `dir`.
  Process(const std::vector<std::string>& command, const TempDir& dir);
  ~Process();

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // The exit code, 128 + N after signal N, -1 when it still runs after `timeout`.
  int Wait(absl::Duration timeout = absl::Seconds(120));
  std::string Out() const;
  std::string Err() const;

 private:
  std::string out_path_;
  std::string err_path_;
  pid_t pid_ = 0;
  bool ended_ = false;
  int exit_code_ = -1;
};

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
  cli::Json Json() const { return cli::Json::parse(out, nullptr, false); }
};

// Runs `kvmesh ARGUMENTS…`, or another program, to its end.
Outcome RunProgram(const std::vector<std::string>& command);
Outcome RunCli(std::vector<std::string> arguments);

// A detached mesh of real processes; stopped when the object goes.
class Mesh {
 public:
  // Fails the test when it does not start.
  Mesh(const std::string& model, const std::vector<std::string>& flags = {});
  ~Mesh();

  bool started() const { return started_; }
  const cli::MeshFile& file() const { return file_; }
  const std::string& router_address() const { return file_.router; }
  v1::RouterService::Stub& router() { return *router_; }
  std::string data_dir() const { return dir_.path() + "/mesh"; }
  const TempDir& dir() const { return dir_; }
  const cli::ServiceEntry& Service(const std::string& name) const;
  // The service that serves on `address`.
  const cli::ServiceEntry& At(const std::string& address) const;

  v1::GetStatusResponse Status();

 private:
  TempDir dir_;
  cli::MeshFile file_;
  bool started_ = false;
  std::unique_ptr<v1::RouterService::Stub> router_;
};

// The command line of a running process.
std::vector<std::string> CommandOf(pid_t pid);

// What health says for the whole process at `address`; UNKNOWN while it does not answer.
grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& address,
                                                            const std::string& service = "");

// Whether the process is gone (a zombie is).
bool IsGone(pid_t pid, const std::string& program);

struct Answer {
  absl::Status status;
  std::vector<uint32_t> ids;
  std::string text;
  std::vector<v1::Logprobs> logprobs;  // one per id, where asked for
  v1::Finished finished;
};

// One generation; `on_token` is called once for each token, with its number from 1.
Answer Generate(
    v1::RouterService::Stub& router, const v1::GenerateRequest& request,
    const std::function<void(size_t)>& on_token = [](size_t) {});
// A greedy one of exactly `tokens` tokens.
Answer Generate(
    v1::RouterService::Stub& router, const std::string& prompt, uint32_t tokens,
    const std::function<void(size_t)>& on_token = [](size_t) {});

// What server reflection at `address` answers to one ServerReflectionRequest, both as serialised
// protos; empty when the call fails. (Debian ships no header for the messages.)
std::string Reflect(const std::string& address, const std::string& request);

// The body of http://ADDRESS/metrics, or empty.
std::string Metrics(const std::string& address);

}  // namespace kvmesh::process_testing

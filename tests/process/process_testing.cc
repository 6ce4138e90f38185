#include "tests/process/process_testing.h"

#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "tools/kvmesh/child.h"
#include "tools/kvmesh/metrics_page.h"

namespace kvmesh::process_testing {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::string Program(const std::string& name) {
  const char* folder = std::getenv("KVMESH_BIN_DIR");
  return absl::StrCat(folder == nullptr ? "build/dev/bin" : folder, "/", name);
}

std::string TinyModel() {
  const char* folder = std::getenv("KVMESH_TEST_DATA");
  return absl::StrCat(folder == nullptr ? "tests/data" : folder, "/gguf/llama-rope3.f32.gguf");
}

std::string RealModel() {
  return "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

void ExpectNothingLeft(const std::function<std::string()>& what_is_left) {
  std::string left;
  EXPECT_TRUE(WaitUntil([&] {
    left = what_is_left();
    return left.empty();
  })) << left;
}

bool IsIdle(const v1::GetStatusResponse& status) {
  return status.generations_running() + status.generations_queued() +
             status.generations_closing() ==
         0;
}

std::string WhatRuns(const v1::GetStatusResponse& status) {
  if (!IsIdle(status)) return "a generation";
  for (const v1::ShardStatus& shard : status.shards()) {
    if (shard.live_sessions() > 0) return absl::StrCat("a session at ", shard.address());
  }
  return "";
}

std::string FilledText(std::string text, size_t seed, size_t bytes) {
  constexpr const char* kWords[] = {"scales", "and", "lengths", "of",     "old",  "towns", "were",
                                    "kept",   "in",  "the",     "market", "hall", "for",   "all"};
  for (size_t i = 0; text.size() < bytes; ++i) {
    absl::StrAppend(&text, " ", kWords[(i * i + seed + i) % std::size(kWords)]);
  }
  text.resize(bytes);
  return text;
}

TempDir::TempDir()
    : path_((std::filesystem::temp_directory_path() /
             absl::StrCat("kvmesh-test-", RandomId<InstanceId>().ToHex().substr(0, 12)))
                .string()) {
  std::filesystem::create_directories(path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::File(const std::string& name, const std::string& content) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

Process::Process(const std::vector<std::string>& command, const TempDir& dir) {
  const std::string base =
      absl::StrCat(dir.path(), "/process-", RandomId<InstanceId>().ToHex().substr(0, 8));
  out_path_ = base + ".out";
  err_path_ = base + ".err";
  std::vector<std::string> arguments = command;
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDOUT_FILENO);
  dup2(open(err_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), STDERR_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (ended_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Signal(int number) const {
  kill(pid_, number);
}

int Process::Wait(absl::Duration timeout) {
  WaitUntil(
      [this] {
        int status = 0;
        if (ended_ || waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
        ended_ = true;
        exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        return true;
      },
      timeout);
  return exit_code_;
}

std::string Process::Out() const {
  return ReadFile(out_path_);
}
std::string Process::Err() const {
  return ReadFile(err_path_);
}

Outcome RunProgram(const std::vector<std::string>& command) {
  const TempDir dir;
  Process process(command, dir);
  const int exit_code = process.Wait();
  return {.exit_code = exit_code, .out = process.Out(), .err = process.Err()};
}

Outcome RunCli(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), Program("kvmesh"));
  return RunProgram(arguments);
}

Mesh::Mesh(const std::string& model, const std::vector<std::string>& flags) {
  std::vector<std::string> command = {"up", "--model", model, "--data-dir", data_dir(), "--detach"};
  command.insert(command.end(), flags.begin(), flags.end());
  // A mesh of few processes, unless the test is about stored state.
  if (std::find(flags.begin(), flags.end(), "--tiers") == flags.end()) {
    command.emplace_back("--no-checkpoints");
  }
  const Outcome up = RunCli(command);
  EXPECT_EQ(up.exit_code, 0) << up.err;
  absl::StatusOr<cli::MeshFile> file = cli::ReadMesh(data_dir());
  if (up.exit_code != 0 || !file.ok()) return;
  file_ = *std::move(file);
  router_ = v1::RouterService::NewStub(rpc::MakeChannel(file_.router));
  started_ = true;
}

Mesh::~Mesh() {
  RunCli({"down", "--data-dir", data_dir(), "--grace-seconds", "5"});
}

const cli::ServiceEntry& Mesh::Service(const std::string& name) const {
  static const cli::ServiceEntry kNone;
  for (const cli::ServiceEntry& service : file_.services) {
    if (service.name == name) return service;
  }
  ADD_FAILURE() << "no service " << name;
  return kNone;
}

const cli::ServiceEntry& Mesh::At(const std::string& address) const {
  static const cli::ServiceEntry kNone;
  for (const cli::ServiceEntry& service : file_.services) {
    if (service.address == address) return service;
  }
  ADD_FAILURE() << "no service at " << address;
  return kNone;
}

v1::GetStatusResponse Mesh::Status() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetStatusResponse response;
  const grpc::Status status = router_->GetStatus(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

std::vector<std::string> CommandOf(pid_t pid) {
  std::istringstream in(ReadFile(absl::StrCat("/proc/", pid, "/cmdline")));
  std::vector<std::string> command;
  for (std::string argument; std::getline(in, argument, '\0');) command.push_back(argument);
  return command;
}

grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& address,
                                                            const std::string& service) {
  auto stub = grpc::health::v1::Health::NewStub(rpc::MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  return status.ok() ? response.status() : grpc::health::v1::HealthCheckResponse::UNKNOWN;
}

bool IsGone(pid_t pid, const std::string& program) {
  return !cli::RunsProgram(pid, program);
}

Answer Generate(v1::RouterService::Stub& router, const std::string& prompt, uint32_t tokens,
                const std::function<void(size_t)>& on_token) {
  v1::GenerateRequest request;
  request.set_text(prompt);
  request.mutable_options()->set_max_tokens(tokens);
  request.mutable_options()->set_ignore_eos(true);
  return Generate(router, request, on_token);
}

Answer Generate(v1::RouterService::Stub& router, const v1::GenerateRequest& request,
                const std::function<void(size_t)>& on_token) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  auto stream = router.Generate(&context, request);
  Answer answer;
  for (v1::GenerateResponse response; stream->Read(&response);) {
    if (response.has_finished()) answer.finished = response.finished();
    if (!response.has_delta()) continue;
    const size_t seen = answer.ids.size();
    for (const uint32_t id : response.delta().token_ids()) answer.ids.push_back(id);
    answer.text += response.delta().text();
    for (const v1::Logprobs& one : response.delta().logprobs()) answer.logprobs.push_back(one);
    // A message may bring several tokens; a test waits for one of them.
    for (size_t count = seen + 1; count <= answer.ids.size(); ++count) on_token(count);
  }
  answer.status = rpc::FromGrpc(stream->Finish());
  return answer;
}

std::string Reflect(const std::string& address, const std::string& request) {
  grpc::GenericStub stub(rpc::MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  // Every operation ends, at the latest at the call's deadline.
  const auto finish = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (!finish()) return "";
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  if (!finish()) return "";
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  if (!finish()) return "";
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!answer.Dump(&slices).ok()) return "";
  for (const grpc::Slice& part : slices)
    text.append(reinterpret_cast<const char*>(part.begin()), part.size());
  grpc::Status status;
  call->Finish(&status, nullptr);
  finish();
  return text;
}

std::string Metrics(const std::string& address) {
  return cli::FetchMetrics(address).value_or("");
}

}  // namespace kvmesh::process_testing

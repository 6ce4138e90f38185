// What scripts rely on: exit codes, the one object of --json, sentences that say what is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/process/process_testing.h"

namespace kvmesh::process_testing {
namespace {

std::set<std::string> Keys(const cli::Json& json) {
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

TEST(CommandLine, UnknownFlagsAreRefusedByEveryProgram) {
  for (const std::string program : {"kvmesh", "kvmesh-shard", "kvmesh-router"}) {
    const Outcome outcome = RunProgram({Program(program), "--no-such-flag"});
    EXPECT_EQ(outcome.exit_code, cli::kUsage) << program;
    EXPECT_EQ(outcome.out, "") << program;
    EXPECT_NE(outcome.err, "") << program;
  }
}

TEST(CommandLine, HelpExplainsEveryFlagAndEndsWell) {
  for (const std::string program : {"kvmesh", "kvmesh-shard", "kvmesh-router"}) {
    const Outcome outcome = RunProgram({Program(program), "--help"});
    EXPECT_EQ(outcome.exit_code, cli::kDone) << program;
    EXPECT_NE(outcome.out.find("--help"), std::string::npos) << program;
  }
}

TEST(CommandLine, WrongUsageIsCodeTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"no-such-command"},
      {"generate", "--prompt", "x"},
      {"generate", "--router", "127.0.0.1:1"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "x", "--prompt-file", "y"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "x", "--cache", "maybe"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "x", "--seed", "-1"},
      {"generate", "--router", "127.0.0.1:1", "--prompt", "x", "--max-tokens", "-1"},
      {"generate", "--router", "", "--prompt", "x"},
      {"generate", "--router", "127.0.0.1:65536", "--prompt", "x"},
      {"chat", "--router", "localhost"},
      {"status", "--router", ""},
      {"sessions", "--shard", "127.0.0.1"},
      {"up"},
      {"up", "--model", "x", "--shards", "0"},
      {"bench"},
      {"model", "inspect"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    const Outcome outcome = RunCli(arguments);
    EXPECT_EQ(outcome.exit_code, cli::kUsage)
        << (arguments.empty() ? "no arguments" : arguments[0]) << ": " << outcome.err;
  }
}

TEST(CommandLine, AnUnreachableRouterIsCodeThreeWithOneErrorObject) {
  const Outcome outcome =
      RunCli({"generate", "--router", "127.0.0.1:1", "--prompt", "x", "--json"});
  EXPECT_EQ(outcome.exit_code, cli::kUnavailable);
  EXPECT_EQ(outcome.Json()["error"]["code"], "UNAVAILABLE") << outcome.out;
}

TEST(CommandLine, TextThatIsNotUtf8IsRefusedByNameBeforeAnythingIsAsked) {
  const TempDir dir;
  const std::string latin1 = dir.File("latin1", "caf\xe9");
  for (const auto& [name, flags] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"--prompt", {"--prompt", "caf\xe9"}},
           {latin1, {"--prompt-file", latin1}},
           {"--stop", {"--prompt", "x", "--stop", "\xff"}}}) {
    std::vector<std::string> arguments = {"generate", "--router", "127.0.0.1:1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = RunCli(arguments);
    EXPECT_EQ(outcome.exit_code, cli::kRefused) << name;
    EXPECT_EQ(outcome.err, "error: INVALID_ARGUMENT: " + name + " is not UTF-8\n");
  }
}

TEST(CommandLine, AFolderIsNoPrompt) {
  const TempDir dir;
  const Outcome outcome =
      RunCli({"generate", "--router", "127.0.0.1:1", "--prompt-file", dir.path()});
  EXPECT_EQ(outcome.exit_code, cli::kFailed);
  EXPECT_NE(outcome.err.find("cannot read " + dir.path()), std::string::npos) << outcome.err;
}

TEST(CommandLine, AMissingModelIsNamed) {
  const TempDir dir;
  const Outcome outcome =
      RunCli({"up", "--model", "/no/such.gguf", "--data-dir", dir.path(), "--detach"});
  EXPECT_EQ(outcome.exit_code, cli::kFailed);
  EXPECT_NE(outcome.err.find("/no/such.gguf"), std::string::npos) << outcome.err;
}

TEST(CommandLine, AMalformedModelIsRefusedByNameBeforeAnythingStarts) {
  const TempDir dir;
  const std::string model = dir.File("bad.gguf", "GGUF but no more");
  const Outcome outcome =
      RunCli({"up", "--model", model, "--data-dir", dir.path() + "/mesh", "--detach"});
  EXPECT_EQ(outcome.exit_code, cli::kFailed) << outcome.err;
  EXPECT_NE(outcome.err.find("bad.gguf"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/mesh"));
}

TEST(CommandLine, MoreShardsThanLayersAreRefusedWithBothNumbers) {
  const TempDir dir;
  const auto up = [&dir](const std::string& shards) {
    return RunCli({"up", "--model", TinyModel(), "--shards", shards, "--data-dir",
                   dir.path() + "/mesh", "--detach"});
  };
  const Outcome refused = up("5");
  EXPECT_EQ(refused.exit_code, cli::kRefused) << refused.err;
  EXPECT_NE(refused.err.find("5 shards for a model of 4 layers"), std::string::npos) << refused.err;
  EXPECT_EQ(up("4").exit_code, cli::kDone);
  EXPECT_EQ(RunCli({"down", "--data-dir", dir.path() + "/mesh"}).exit_code, cli::kDone);
}

// A shard that starts and ends: it refuses a value of its environment.
TEST(CommandLine, AShardThatEndsIsToldWithItsReasonAndNotWithThatOfAnEarlierOne) {
  const TempDir dir;
  const auto up = [&dir](const std::string& bytes) {
    return RunProgram({"/usr/bin/env", "MESHNET_KV_MAX_BYTES=" + bytes, Program("kvmesh"), "up",
                       "--model", TinyModel(), "--data-dir", dir.path() + "/mesh", "--detach"});
  };
  const Outcome first = up("abc");
  EXPECT_EQ(first.exit_code, cli::kUnavailable) << first.err;
  EXPECT_NE(first.err.find("\"abc\" is not a whole number"), std::string::npos) << first.err;
  const Outcome second = up("-7");
  EXPECT_NE(second.err.find("\"-7\" is not a whole number"), std::string::npos) << second.err;
  EXPECT_EQ(second.err.find("abc"), std::string::npos) << second.err;
  EXPECT_FALSE(cli::ReadMesh(dir.path() + "/mesh").ok());
  EXPECT_TRUE(cli::MeshLock::Take(dir.path() + "/mesh").ok()) << "a process still holds the folder";
}

// The limits of a shard's cache come from flags, else from the environment.
TEST(CommandLine, TheEnvironmentSetsTheLimitsOfTheSessionCacheAndIsNamedWhenItIsWrong) {
  const auto shard = [](const std::string& setting, const std::string& flag) {
    return RunProgram(
        {"/usr/bin/env", setting, Program("kvmesh-shard"), "--model", "/no/such", flag});
  };
  for (const std::string name :
       {"MESHNET_KV_MAX_BYTES", "MESHNET_KV_MAX_SESSIONS", "MESHNET_KV_TTL_SECONDS"}) {
    for (const std::string value : {"abc", "0"}) {
      const Outcome outcome = shard(name + "=" + value, "--no-kv-cache");
      EXPECT_EQ(outcome.exit_code, cli::kUsage) << name << "=" << value;
      EXPECT_NE(outcome.err.find(name + "=" + value), std::string::npos) << outcome.err;
    }
    // Taken: the next complaint is the model's.
    EXPECT_NE(shard(name + "=17", "--no-kv-cache").err.find("/no/such"), std::string::npos) << name;
  }
  EXPECT_EQ(shard("MESHNET_KV_MAX_BYTES=17", "--kv-max-bytes=abc").exit_code, cli::kUsage);
}

TEST(CommandLine, ModelInspectPrintsOneObject) {
  const Outcome outcome = RunCli({"model", "inspect", TinyModel(), "--shards", "2", "--json"});
  ASSERT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  EXPECT_EQ(outcome.Json()["architecture"], "llama");
  EXPECT_EQ(outcome.Json()["stages"].size(), 2u);
  EXPECT_EQ(outcome.Json()["model_fp"].get<std::string>().size(), 64u);
}

TEST(CommandLine, DownWithoutAMeshSaysSo) {
  const TempDir dir;
  const Outcome outcome = RunCli({"down", "--data-dir", dir.path()});
  EXPECT_EQ(outcome.exit_code, cli::kFailed);
  EXPECT_NE(outcome.err.find("no mesh runs"), std::string::npos) << outcome.err;
}

// One mesh for all tests that only ask.
class OnAMesh : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { mesh_ = new Mesh(TinyModel()); }
  static void TearDownTestSuite() {
    delete mesh_;
    mesh_ = nullptr;
  }
  void SetUp() override { ASSERT_TRUE(mesh_->started()); }

  static Outcome Generate(std::vector<std::string> flags) {
    std::vector<std::string> arguments = {"generate", "--router", mesh_->router_address()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunCli(arguments);
  }

  static Mesh* mesh_;
};
Mesh* OnAMesh::mesh_ = nullptr;

TEST_F(OnAMesh, GenerateJsonHasExactlyTheDocumentedKeys) {
  const Outcome outcome =
      Generate({"--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--json"});
  ASSERT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  const cli::Json json = outcome.Json();
  EXPECT_EQ(Keys(json), (std::set<std::string>{"token_ids", "text", "finish_reason", "finish_key",
                                               "usage", "timings"}));
  EXPECT_EQ(Keys(json["usage"]),
            (std::set<std::string>{"prompt_tokens", "completion_tokens", "cached_tokens",
                                   "cached_by_tier", "drifted_tokens", "outcome", "cause",
                                   "reprefills", "repairs"}));
  EXPECT_EQ(Keys(json["timings"]),
            (std::set<std::string>{"ttft_ms", "tokens_per_second", "per_token_ms"}));
  EXPECT_EQ(json["token_ids"].size(), 8u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  EXPECT_EQ(json["usage"]["reprefills"], 0);
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST_F(OnAMesh, TheSameSeedDrawsTheSameIdsAndAnotherDrawsOthers) {
  const auto draw = [](const std::string& seed) {
    return Generate({"--prompt", "hello", "--max-tokens", "24", "--ignore-eos", "--temperature",
                     "1.5", "--seed", seed, "--json"})
        .Json()["token_ids"];
  };
  const cli::Json first = draw("7");
  EXPECT_EQ(first.size(), 24u);
  EXPECT_EQ(draw("7"), first);
  EXPECT_NE(draw("8"), first);
}

TEST_F(OnAMesh, StatelessAndCachedRunsEmitTheSameIds) {
  const auto run = [](const std::string& cache) {
    return Generate({"--prompt", "hello", "--max-tokens", "12", "--ignore-eos", "--cache", cache,
                     "--json"})
        .Json()["token_ids"];
  };
  const cli::Json cached = run("on");
  EXPECT_EQ(cached.size(), 12u);
  EXPECT_EQ(run("off"), cached);
  EXPECT_EQ(run("stateless"), cached);
}

TEST_F(OnAMesh, TextOfPeopleAndOfJsonIsTheSame) {
  const std::vector<std::string> flags = {"--prompt", "hello", "--max-tokens", "8"};
  const Outcome plain = Generate(flags);
  ASSERT_EQ(plain.exit_code, cli::kDone) << plain.err;
  std::vector<std::string> with_json = flags;
  with_json.push_back("--json");
  EXPECT_EQ(plain.out, Generate(with_json).Json()["text"].get<std::string>() + "\n");
}

TEST_F(OnAMesh, IdsChatAndFilesAreTakenAsPrompts) {
  const TempDir dir;
  EXPECT_EQ(Generate({"--ids-file", dir.File("ids", "[5, 6, 7]"), "--max-tokens", "2"}).exit_code,
            0);
  EXPECT_EQ(Generate({"--prompt-file", dir.File("text", "hello"), "--max-tokens", "2"}).exit_code,
            0);
  const std::string chat = dir.File("chat", R"([{"role": "user", "content": "hello"}])");
  const Outcome outcome = Generate({"--chat-file", chat, "--max-tokens", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(OnAMesh, WhatALimitForbidsIsCodeFour) {
  const TempDir dir;
  std::string ids = "[5";
  for (int i = 0; i < 600; ++i) ids += ",5";
  const Outcome too_long = Generate({"--ids-file", dir.File("long", ids + "]"), "--json"});
  EXPECT_EQ(too_long.exit_code, cli::kRefused);
  // Both numbers are in the message: the prompt's and the context's.
  const std::string message = too_long.Json()["error"]["message"].get<std::string>();
  EXPECT_NE(message.find("601"), std::string::npos) << message;
  EXPECT_NE(message.find("512"), std::string::npos) << message;
  EXPECT_EQ(Generate({"--ids-file", dir.File("alien", "[999999]")}).exit_code, cli::kRefused);
  EXPECT_EQ(Generate({"--ids-file", dir.File("no-ids", "{}")}).exit_code, cli::kRefused);
}

TEST_F(OnAMesh, StatusAndSessionsPrintOneObject) {
  const Outcome status = RunCli({"status", "--router", mesh_->router_address(), "--json"});
  ASSERT_EQ(status.exit_code, cli::kDone) << status.err;
  EXPECT_EQ(status.Json()["ready"], true);
  EXPECT_EQ(status.Json()["route"].size(), 2u);
  EXPECT_EQ(status.Json()["model_fp"].get<std::string>().size(), 64u);
  EXPECT_EQ(status.Json()["route"][0]["instance_id"].get<std::string>().size(), 32u);
  const Outcome sessions = RunCli({"sessions", "--router", mesh_->router_address(), "--json"});
  ASSERT_EQ(sessions.exit_code, cli::kDone) << sessions.err;
  EXPECT_TRUE(sessions.Json()["sessions"].is_array());
  EXPECT_TRUE(sessions.Json()["errors"].empty());
}

TEST_F(OnAMesh, ASecondMeshInTheSameFolderIsRefused) {
  const Outcome again =
      RunCli({"up", "--model", TinyModel(), "--data-dir", mesh_->data_dir(), "--detach"});
  EXPECT_EQ(again.exit_code, cli::kFailed);
  EXPECT_NE(again.err.find("already runs"), std::string::npos) << again.err;
  EXPECT_TRUE(mesh_->Status().ready());
}

}  // namespace
}  // namespace kvmesh::process_testing

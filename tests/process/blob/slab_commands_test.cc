// `kvmesh slab inspect` and `slab ls`, on files and on a real store.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/blob_client.h"
#include "common/rpc/channel.h"
#include "services/blob/core/slab_name.h"
#include "tests/process/process_testing.h"
#include "tests/testing/random_slab.h"
#include "tests/testing/test_data.h"

namespace kvmesh::process_testing {
namespace {

using testing::MakeRandomSlab;
using testing::RandomSlab;

class SlabCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string ready = folder_.path() + "/ready.json";
    store_ = std::make_unique<Process>(
        std::vector<std::string>{Program("kvmesh-blob"), "--tier", "disk", "--dir",
                                 folder_.path() + "/data", "--budget-bytes", "100000000",
                                 "--ready-file", ready},
        folder_);
    ASSERT_TRUE(WaitUntil([&] { return std::filesystem::exists(ready); })) << store_->Err();
    address_ = cli::Json::parse(testing::ReadWholeFile(ready))["address"].get<std::string>();
  }

  static std::string IdOf(const RandomSlab& slab) { return blob::NameOf(slab.meta).ToFileName(); }
  void Put(const RandomSlab& slab) const {
    v1::PutHeader header;
    header.mutable_slab()->set_key(slab.meta.key.ToHex());
    header.mutable_slab()->mutable_layers()->set_begin(slab.meta.header.layers.begin);
    header.mutable_slab()->mutable_layers()->set_end(slab.meta.header.layers.end);
    header.mutable_slab()->set_write_id(slab.meta.write_id.ToHex());
    header.set_tokens_sha256(std::string(slab.meta.tokens_sha256.bytes()));
    header.set_size_bytes(slab.bytes.size());
    header.set_payload_crc32c(slab.meta.payload_crc32c());
    const auto put = rpc::PutSlab(rpc::MakeChannel(address_), header,
                                  rpc::SlabBytes::Of(slab.bytes), absl::Seconds(60));
    ASSERT_TRUE(put.ok()) << put.status();
  }

  const TempDir folder_;
  std::unique_ptr<Process> store_;
  std::string address_;
};

void ExpectDescribes(const Outcome& outcome, const RandomSlab& slab) {
  ASSERT_EQ(outcome.exit_code, cli::kDone) << outcome.err;
  const cli::Json json = outcome.Json();
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["key"], slab.meta.key.ToHex());
  EXPECT_EQ(json["write_id"], slab.meta.write_id.ToHex());
  EXPECT_EQ(json["tokens_sha256"], slab.meta.tokens_sha256.ToHex());
  EXPECT_EQ(json["token_ids"].get<std::vector<uint32_t>>(), slab.meta.token_ids);
  EXPECT_EQ(json["size_bytes"], slab.bytes.size());
  EXPECT_EQ(json["layer_table"].size(), slab.meta.regions.size());
  EXPECT_EQ(json["layer_table"][1]["length"], slab.layers[1].size());
  EXPECT_EQ(json["cut_points"].size(), slab.meta.cut_points.size());
}

TEST_F(SlabCommands, InspectDescribesAFileAndAStoredSlabAlike) {
  const RandomSlab slab = MakeRandomSlab({.seed = 5, .token_count = 100});
  Put(slab);
  const std::string file = folder_.File("slab.kvc", slab.bytes);
  for (const bool verify : {false, true}) {
    std::vector<std::string> of_file = {"slab", "inspect", file, "--json"};
    std::vector<std::string> of_id = {"slab", "inspect", IdOf(slab), "--store", address_, "--json"};
    if (verify) {
      of_file.emplace_back("--verify");
      of_id.emplace_back("--verify");
    }
    const Outcome from_file = RunCli(of_file);
    ExpectDescribes(from_file, slab);
    ExpectDescribes(RunCli(of_id), slab);
    EXPECT_EQ(from_file.Json()["checked"].get<std::string>().find("payload") != std::string::npos,
              verify);
  }
  const Outcome people = RunCli({"slab", "inspect", file});
  EXPECT_EQ(people.exit_code, cli::kDone);
  for (const std::string& shown :
       {slab.meta.key.ToHex(), std::string("key_value"), std::string("cut_point"),
        std::string("sound: header, meta section, trailer")}) {
    EXPECT_NE(people.out.find(shown), std::string::npos) << shown << "\n" << people.out;
  }
}

TEST_F(SlabCommands, InspectFindsABadPayloadOnlyWithVerifyAndABadHeadAlways) {
  const RandomSlab slab = MakeRandomSlab({.seed = 5});
  std::string bad_payload = slab.bytes;
  bad_payload[bad_payload.size() - 100] ^= 1;
  std::string bad_head = slab.bytes;
  bad_head[70] ^= 1;
  const std::string payload_file = folder_.File("payload.kvc", bad_payload);
  const std::string head_file = folder_.File("head.kvc", bad_head);
  EXPECT_EQ(RunCli({"slab", "inspect", payload_file, "--json"}).exit_code, cli::kDone);
  for (const auto& [file, flag] : {std::pair(payload_file, "--verify"), {head_file, "--json"}}) {
    const Outcome refused = RunCli({"slab", "inspect", file, flag, "--json"});
    EXPECT_EQ(refused.exit_code, cli::kFailed);
    EXPECT_EQ(refused.Json()["error"]["reason"], "SLAB_CORRUPT") << refused.out;
  }
}

TEST_F(SlabCommands, InspectSaysWhatIsNotThere) {
  const RandomSlab slab = MakeRandomSlab({});
  const auto exit_of = [](const std::vector<std::string>& arguments) {
    return RunCli(arguments).exit_code;
  };
  EXPECT_EQ(exit_of({"slab", "inspect", folder_.path() + "/none"}), cli::kFailed);
  EXPECT_EQ(exit_of({"slab", "inspect", folder_.path()}), cli::kFailed);
  EXPECT_EQ(exit_of({"slab", "inspect", IdOf(slab), "--store", address_}), cli::kFailed);
  EXPECT_EQ(exit_of({"slab", "inspect", "no-id", "--store", address_}), cli::kRefused);
  EXPECT_EQ(exit_of({"slab", "inspect", IdOf(slab), "--store", "127.0.0.1:1"}), cli::kUnavailable);
  EXPECT_EQ(exit_of({"slab", "inspect"}), cli::kUsage);
  EXPECT_EQ(exit_of({"slab"}), cli::kUsage);
}

TEST_F(SlabCommands, LsListsWhatTheStoreHolds) {
  EXPECT_TRUE(RunCli({"slab", "ls", "--store", address_, "--json"}).Json()["slabs"].empty());
  std::vector<std::string> ids;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const RandomSlab slab = MakeRandomSlab({.seed = seed});
    Put(slab);
    ids.push_back(IdOf(slab));
  }
  std::sort(ids.begin(), ids.end());
  const Outcome listed = RunCli({"slab", "ls", "--store", address_, "--json"});
  ASSERT_EQ(listed.exit_code, cli::kDone) << listed.err;
  std::vector<std::string> found;
  const cli::Json json = listed.Json();
  for (const cli::Json& slab : json["slabs"]) {
    found.push_back(slab["id"]);
    EXPECT_EQ(slab["store"], address_);
    EXPECT_EQ(slab["token_count"], 70);
  }
  EXPECT_EQ(found, ids);
  const Outcome people = RunCli({"slab", "ls", "--store", address_});
  for (const std::string& id : ids) EXPECT_NE(people.out.find(id), std::string::npos);
  EXPECT_EQ(RunCli({"slab", "ls", "--store", "127.0.0.1:1"}).exit_code, cli::kUnavailable);
  EXPECT_EQ(RunCli({"slab", "ls"}).exit_code, cli::kUsage);
}

}  // namespace
}  // namespace kvmesh::process_testing

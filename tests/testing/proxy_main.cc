// kvmesh-test-proxy: stands in front of one shard process and makes it look older than it is. It
// prints its own address on one line and serves until SIGTERM.
#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "common/rpc/process.h"
#include "tests/testing/forward_proxy.h"

int main(int argc, char** argv) {
  using kvmesh::testing::ProxyHooks;
  CLI::App app("A proxy in front of one shard, for tests of mixed fleets");
  std::string listen = "127.0.0.1:0";
  std::string target;
  bool without_token_ids = false;
  bool without_kv_cache = false;
  app.add_option("--listen", listen, "Address to listen on")->capture_default_str();
  app.add_option("--target", target, "Address of the shard")->required();
  app.add_flag("--without-token-ids", without_token_ids, "Remove token_id from every answer");
  app.add_flag("--without-kv-cache", without_kv_cache, "Clear supports_kv_cache in Watch");
  CLI11_PARSE(app, argc, argv);

  kvmesh::rpc::InitProcess("kvmesh-test-proxy", 0);
  ProxyHooks hooks;
  if (without_token_ids) hooks.on_answer = kvmesh::testing::WithoutTokenIds().on_answer;
  if (without_kv_cache) hooks.on_watch = kvmesh::testing::WithoutKvCache().on_watch;
  auto proxy = kvmesh::testing::ForwardProxy::Start(listen, target, std::move(hooks));
  if (!proxy.ok()) {
    std::cerr << proxy.status() << "\n";
    return kvmesh::rpc::kExitFailed;
  }
  std::cout << (*proxy)->address() << std::endl;
  kvmesh::rpc::WaitForTermination();
  return kvmesh::rpc::kExitDone;
}

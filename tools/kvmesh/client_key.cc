// `client-key`: a token for a client, and what --clients-file has to say of it.
#include <cstdio>
#include <string>

#include "common/base/hex.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

std::string RandomHex() {
  uint8_t bytes[32];
  RandomBytes(bytes, sizeof(bytes));
  return HexEncode({reinterpret_cast<const char*>(bytes), sizeof(bytes)});
}

// Nothing is kept here: the token is printed once, its hash goes into the file.
int ClientKey(Context& context, const std::string& tenant) {
  const std::string token = RandomHex();
  const std::string hash = Sha256Of(token).ToHex();
  const Json entry = {{"name", tenant}, {"salt", RandomHex()}, {"key_sha256", {hash}}};
  if (context.json) {
    PrintJson({{"token", token}, {"key_sha256", hash}, {"tenant", entry}});
    return kDone;
  }
  std::printf("%s\n", token.c_str());
  std::fprintf(stderr,
               "The token stands above; it is shown this once. For a tenant that is there, add\n"
               "  \"%s\"\nto its key_sha256; for a new one, add to tenants:\n  %s\n",
               hash.c_str(), entry.dump().c_str());
  return kDone;
}

}  // namespace

void AddClientKey(CLI::App& app, Action* chosen) {
  auto tenant = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("client-key", "Make a token for a client of routers with --clients-file");
  command->add_option("--tenant", *tenant, "Name of the tenant whose client it is")->required();
  command->callback(
      [=] { *chosen = [=](Context& context) { return ClientKey(context, *tenant); }; });
}

}  // namespace kvmesh::cli

// The command-line client: a mesh on this machine, chats, inspection, benchmarks.
#include <cstdio>
#include <exception>

#include "common/base/version.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

int Main(int argc, char** argv) {
  Interrupt interrupt;
  Context context{.interrupt = &interrupt};
  Action chosen;

  CLI::App app("kvmesh: generates text with one language model spread over several machines");
  app.set_version_flag("--version", std::string(kVersion));
  app.add_flag("--json", context.json, "Print one JSON object on stdout, nothing else");
  Credentials credentials;
  app.add_option("--tls-dir", credentials.tls_folder,
                 "Folder with tls.crt, tls.key and ca.crt, for services that demand TLS; the "
                 "certificate is a client's or an operator's");
  app.add_option("--token-file", credentials.token_file,
                 "File with the token that routers know this client by");
  app.require_subcommand(1);
  app.fallthrough();
  AddUp(app, &chosen);
  AddDown(app, &chosen);
  AddGenerate(app, &chosen);
  AddChat(app, &chosen);
  AddStatus(app, &chosen);
  AddSessions(app, &chosen);
  AddModel(app, &chosen);
  AddSlab(app, &chosen);
  AddCheckpoints(app, &chosen);
  AddReservations(app, &chosen);
  AddExplain(app, &chosen);
  AddClientKey(app, &chosen);
  AddBench(app, &chosen);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 unavailable, 4 refused (limits), 130 "
      "interrupted.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  if (const absl::Status used = UseCredentials(credentials); !used.ok()) {
    return Report(used, context.json, false);
  }
  return chosen(context);
}

}  // namespace
}  // namespace kvmesh::cli

int main(int argc, char** argv) {
  try {
    return kvmesh::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kvmesh::cli::kFailed;
  }
}

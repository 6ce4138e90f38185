// What every command gets, and how commands add themselves to the program.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

#include "tools/kvmesh/interrupt.h"

namespace kvmesh::cli {

struct Context {
  bool json = false;
  Interrupt* interrupt = nullptr;
};

// The action of the command that was named on the command line; its result is the exit code.
using Action = std::function<int(Context&)>;

// Each adds its command (and flags) to `app`; the chosen one sets *chosen when the command line is
// parsed.
void AddUp(CLI::App& app, Action* chosen);
void AddDown(CLI::App& app, Action* chosen);
void AddGenerate(CLI::App& app, Action* chosen);
void AddChat(CLI::App& app, Action* chosen);
void AddStatus(CLI::App& app, Action* chosen);
void AddSessions(CLI::App& app, Action* chosen);
void AddModel(CLI::App& app, Action* chosen);
void AddSlab(CLI::App& app, Action* chosen);
void AddCheckpoints(CLI::App& app, Action* chosen);
void AddReservations(CLI::App& app, Action* chosen);
void AddClientKey(CLI::App& app, Action* chosen);
void AddExplain(CLI::App& app, Action* chosen);
void AddBench(CLI::App& app, Action* chosen);

}  // namespace kvmesh::cli

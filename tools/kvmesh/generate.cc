// `generate`: one answer. `chat`: a conversation in the terminal.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/dial.h"
#include "tools/kvmesh/generation.h"
#include "tools/kvmesh/generation_flags.h"

namespace kvmesh::cli {
namespace {

struct GenerateFlags {
  GenerationFlags common;
  std::string prompt;
  std::string prompt_file;
  std::string chat_file;
  std::string ids_file;
};

// NotFound: no such file. InvalidArgument: longer than any prompt may be. FailedPrecondition: it
// cannot be read to its end (a folder opens, but gives nothing). "-" is standard input.
absl::StatusOr<std::string> ReadInput(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  std::istream& in = path == "-" ? std::cin : file;
  // Ids as JSON take more characters than the text they stand for.
  const size_t bytes_max = 4 * limits::kTextBytesMax;
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof(buffer)) || in.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is longer than ", bytes_max, " bytes"));
    }
  }
  if (in.bad()) return absl::FailedPreconditionError(absl::StrCat("cannot read ", path));
  return text;
}

// The wire takes UTF-8 alone; a request with other bytes is refused there without a word.
absl::Status CheckUtf8(absl::string_view name, absl::string_view text) {
  if (IsUtf8(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is not UTF-8"));
}

absl::Status CheckStops(const GenerationFlags& flags) {
  for (const std::string& stop : flags.stop) KVMESH_RETURN_IF_ERROR(CheckUtf8("--stop", stop));
  return absl::OkStatus();
}

// A JSON array of {role, content}. Messages with more than these two plain strings travel as they
// are.
absl::StatusOr<v1::ChatInput> ParseChat(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a JSON array of {role, content}"));
  }
  v1::ChatInput input;
  for (const Json& message : json) {
    if (!message.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a message is not a JSON object"));
    }
    v1::ChatMessage& out = *input.add_messages();
    const auto role = message.find("role");
    const auto content = message.find("content");
    const bool plain = message.size() == 2 && role != message.end() && role->is_string() &&
                       content != message.end() && content->is_string();
    if (plain) {
      out.set_role(role->get<std::string>());
      out.set_content(content->get<std::string>());
    } else {
      out.set_json(message.dump());
    }
  }
  return input;
}

absl::StatusOr<v1::TokenIds> ParseIds(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  v1::TokenIds ids;
  bool good = json.is_array();
  for (size_t i = 0; good && i < json.size(); ++i) {
    good = json[i].is_number_unsigned() && json[i].get<uint64_t>() <= UINT32_MAX;
    if (good) ids.add_ids(json[i].get<uint32_t>());
  }
  if (!good)
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON array of token ids"));
  return ids;
}

absl::Status RunWith(const GenerateFlags& flags, Context& context, const TextSink& sink,
                     GenerationResult* result) {
  KVMESH_RETURN_IF_ERROR(CheckStops(flags.common));
  auto router = v1::RouterService::NewStub(Dial(flags.common.router, rpc::Role::kRouter));
  const absl::Duration timeout = absl::Seconds(flags.common.timeout_seconds);
  if (!flags.chat_file.empty()) {
    v1::ChatRequest request;
    KVMESH_ASSIGN_OR_RETURN(const std::string text, ReadInput(flags.chat_file));
    KVMESH_ASSIGN_OR_RETURN(*request.mutable_input(), ParseChat(text, flags.chat_file));
    *request.mutable_options() = ToOptions(flags.common);
    return RunChat(*router, request, timeout, *context.interrupt, sink, result);
  }
  v1::GenerateRequest request;
  *request.mutable_options() = ToOptions(flags.common);
  if (!flags.ids_file.empty()) {
    KVMESH_ASSIGN_OR_RETURN(const std::string text, ReadInput(flags.ids_file));
    KVMESH_ASSIGN_OR_RETURN(*request.mutable_token_ids(), ParseIds(text, flags.ids_file));
  } else if (!flags.prompt_file.empty()) {
    KVMESH_ASSIGN_OR_RETURN(*request.mutable_text(), ReadInput(flags.prompt_file));
    KVMESH_RETURN_IF_ERROR(CheckUtf8(flags.prompt_file, request.text()));
    request.set_add_special_tokens(true);
  } else {
    KVMESH_RETURN_IF_ERROR(CheckUtf8("--prompt", flags.prompt));
    request.set_text(flags.prompt);
    request.set_add_special_tokens(true);
  }
  return RunGenerate(*router, request, timeout, *context.interrupt, sink, result);
}

void PrintPiece(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

int Generate(Context& context, const GenerateFlags& flags) {
  GenerationResult result;
  const TextSink sink = context.json ? TextSink([](absl::string_view) {}) : TextSink(PrintPiece);
  const absl::Status status = RunWith(flags, context, sink, &result);
  if (!context.json && !result.text.empty()) PrintPiece("\n");
  if (!status.ok()) return Report(status, context.json, context.interrupt->requested());
  if (context.json) {
    PrintJson(ToJson(result));
  } else {
    std::fprintf(stderr, "%s\n", Summary(result).c_str());
  }
  return kDone;
}

// Reads turns from standard input until it ends. The whole conversation travels each time; the mesh
// keeps no state that a client relies on.
int Chat(Context& context, const GenerationFlags& flags, const std::string& system) {
  if (context.json) {
    return Report(
        absl::InvalidArgumentError("chat is for people: with --json use generate --chat-file"),
        true, false);
  }
  absl::Status text = CheckStops(flags);
  text.Update(CheckUtf8("--system", system));
  if (!text.ok()) return Report(text, false, false);
  auto router = v1::RouterService::NewStub(Dial(flags.router, rpc::Role::kRouter));
  v1::ChatRequest request;
  *request.mutable_options() = ToOptions(flags);
  const auto add = [&request](const std::string& role, const std::string& content) {
    v1::ChatMessage& message = *request.mutable_input()->add_messages();
    message.set_role(role);
    message.set_content(content);
  };
  if (!system.empty()) add("system", system);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    {
      // Nothing runs while the user types: Ctrl-C then just ends.
      Interrupt::Scope typing(*context.interrupt, [] { _exit(kInterrupted); });
      if (!std::getline(std::cin, line)) break;
    }
    if (line.empty()) continue;
    if (const absl::Status typed = CheckUtf8("this line", line); !typed.ok()) {
      return Report(typed, false, false);
    }
    add("user", line);
    GenerationResult result;
    const absl::Status status = RunChat(*router, request, absl::Seconds(flags.timeout_seconds),
                                        *context.interrupt, PrintPiece, &result);
    PrintPiece("\n");
    if (!status.ok()) return Report(status, false, context.interrupt->requested());
    if (terminal) Progress(Summary(result));
    add("assistant", result.text);
    request.mutable_options()->set_parent_key(result.finished.finish_key());
  }
  return kDone;
}

}  // namespace

void AddGenerate(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "One answer, streamed");
  AddGenerationFlags(*command, flags->common);
  CLI::Option_group* prompt = command->add_option_group("prompt", "What to continue or to answer");
  prompt->add_option("--prompt", flags->prompt, "Text to continue");
  prompt->add_option("--prompt-file", flags->prompt_file,
                     "File with the text; - is standard input");
  prompt->add_option("--chat-file", flags->chat_file,
                     "JSON array of {role, content}, through the model's own chat template");
  prompt->add_option("--ids-file", flags->ids_file, "JSON array of token ids");
  prompt->require_option(1);
  command->callback(
      [=] { *chosen = [flags](Context& context) { return Generate(context, *flags); }; });
}

void AddChat(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<GenerationFlags>();
  auto system = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("chat", "A conversation in the terminal");
  AddGenerationFlags(*command, *flags);
  command->add_option("--system", *system, "Text of the system message; default: none");
  command->callback(
      [=] { *chosen = [=](Context& context) { return Chat(context, *flags, *system); }; });
}

}  // namespace kvmesh::cli

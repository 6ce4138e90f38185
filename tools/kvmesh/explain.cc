// `explain`: why a prompt does or does not hit a checkpoint.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hex.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/slab/content_key.h"
#include "tools/kvmesh/command.h"
#include "tools/kvmesh/meta_calls.h"

namespace kvmesh::cli {
namespace {

using Stub = v1::MetaService::Stub;

struct ExplainFlags {
  std::string meta;
  std::string prompt;
  std::string prompt_file;
  std::string text_file;
  // The namespace; empty: the only one that has checkpoints.
  std::string model_fp;
  std::string quant;
  std::string ctx_params;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return bytes;
}

// The prompt as checkpoints spell it.
absl::StatusOr<std::string> TextOf(const ExplainFlags& flags) {
  if (!flags.text_file.empty()) return ReadFile(flags.text_file);
  std::string prompt = flags.prompt;
  if (!flags.prompt_file.empty()) {
    KVMESH_ASSIGN_OR_RETURN(prompt, ReadFile(flags.prompt_file));
  }
  std::string text;
  slab::AppendPiece(prompt, &text);
  return text;
}

absl::StatusOr<v1::CacheNamespace> OnlyNamespace(Stub& stub) {
  v1::ListRowsRequest request;
  request.set_page_size(limits::kListPageMax);
  v1::ListRowsResponse response;
  KVMESH_RETURN_IF_ERROR(CallMeta(stub, &Stub::ListRows, request, &response));
  std::set<std::string> seen;
  for (const v1::RowSummary& row : response.rows()) {
    seen.insert(NamespaceJson(row.namespace_()).dump());
  }
  if (seen.size() == 1) return response.rows(0).namespace_();
  return absl::InvalidArgumentError(
      seen.empty() ? std::string("there are no checkpoints; name the namespace by --model-fp, "
                                 "--quant and --ctx-params")
                   : absl::StrCat("there are several namespaces; name one by --model-fp, --quant "
                                  "and --ctx-params:\n",
                                  absl::StrJoin(seen, "\n")));
}

absl::StatusOr<v1::CacheNamespace> NamespaceOf(const ExplainFlags& flags, Stub& stub) {
  if (flags.model_fp.empty()) return OnlyNamespace(stub);
  v1::CacheNamespace key_namespace;
  KVMESH_ASSIGN_OR_RETURN(*key_namespace.mutable_model_fp(), HexDecode(flags.model_fp));
  KVMESH_ASSIGN_OR_RETURN(*key_namespace.mutable_ctx_params_hash(), HexDecode(flags.ctx_params));
  key_namespace.set_quant(flags.quant);
  return key_namespace;
}

absl::StatusOr<v1::ExplainLookupResponse> Ask(const ExplainFlags& flags) {
  const auto stub = MetaStub(flags.meta);
  v1::ExplainLookupRequest request;
  KVMESH_ASSIGN_OR_RETURN(*request.mutable_text(), TextOf(flags));
  KVMESH_ASSIGN_OR_RETURN(*request.mutable_namespace_(), NamespaceOf(flags, *stub));
  v1::ExplainLookupResponse response;
  KVMESH_RETURN_IF_ERROR(CallMeta(*stub, &Stub::ExplainLookup, request, &response));
  return response;
}

Json ToJson(const v1::ExplainLookupResponse& response) {
  Json json = {{"found", response.lookup().found()},
               {"token_count", response.lookup().token_count()},
               {"text_bytes", response.lookup().text_bytes()}};
  if (response.lookup().found()) json["row"] = RowJson(response.lookup().row());
  if (response.has_nearest()) {
    json["nearest"] = RowJson(response.nearest());
    json["common_bytes"] = response.common_bytes();
    json["common_bytes_max"] = response.common_bytes_max();
  }
  if (response.has_difference()) {
    json["difference"] = {{"offset", response.difference().offset()},
                          {"prompt", response.difference().prompt()},
                          {"row", response.difference().row()}};
  }
  json["namespace_fields_that_differ"] = Json::array();
  for (const std::string& field : response.namespace_fields_that_differ()) {
    json["namespace_fields_that_differ"].push_back(field);
  }
  if (response.has_gone()) {
    json["gone"] = {{"key", response.gone().key()},
                    {"token_count", response.gone().token_count()},
                    {"text_bytes", response.gone().text_bytes()},
                    {"cut_token_count", response.gone().cut_token_count()},
                    {"cut_text_bytes", response.gone().cut_text_bytes()},
                    {"cause", response.gone().cause()},
                    {"age_ms", response.gone().age().value()}};
  }
  return json;
}

void Print(const v1::ExplainLookupResponse& response) {
  const v1::LookupResponse& lookup = response.lookup();
  if (lookup.found()) {
    std::printf("hit: %u tokens, %lu bytes, of the checkpoint %s (%s)\n", lookup.token_count(),
                lookup.text_bytes(), lookup.row().key().c_str(), TiersOf(lookup.row()).c_str());
  } else {
    std::printf("miss\n");
  }
  if (response.has_nearest()) {
    const bool certain = response.common_bytes_max() <= response.common_bytes();
    std::printf(
        "nearest: %s, %u tokens, shares %lu bytes%s\n", response.nearest().key().c_str(),
        response.nearest().token_count(), response.common_bytes(),
        certain ? ""
                : absl::StrCat("; another may share up to ", response.common_bytes_max()).c_str());
  }
  if (response.has_difference()) {
    const v1::TextDifference& difference = response.difference();
    std::printf("  byte %lu differs\n    prompt:     %s\n    checkpoint: %s\n", difference.offset(),
                absl::CEscape(difference.prompt()).c_str(),
                absl::CEscape(difference.row()).c_str());
  }
  if (response.namespace_fields_that_differ_size() > 0) {
    std::printf("a checkpoint of this text differs in %s\n",
                absl::StrJoin(response.namespace_fields_that_differ(), ", ").c_str());
  }
  if (response.has_gone()) {
    std::printf("gone: %s, %u tokens, %s %.0f s ago; it would have served %u of them\n",
                response.gone().key().c_str(), response.gone().token_count(),
                response.gone().cause().c_str(),
                static_cast<double>(response.gone().age().value()) / 1000,
                response.gone().cut_token_count());
  }
}

int Run(Context& context, const ExplainFlags& flags) {
  const absl::StatusOr<v1::ExplainLookupResponse> response = Ask(flags);
  if (!response.ok()) {
    return Report(response.status(), context.json, context.interrupt->requested());
  }
  if (context.json) {
    PrintJson(ToJson(*response));
  } else {
    Print(*response);
  }
  return kDone;
}

}  // namespace

void AddExplain(CLI::App& app, Action* chosen) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* command = app.add_subcommand("explain", "Why a prompt does or does not hit");
  AddMetaFlag(*command, &flags->meta);
  CLI::Option_group* text = command->add_option_group("text", "What would be looked up");
  text->add_option("--prompt", flags->prompt, "A text without control tokens");
  text->add_option("--prompt-file", flags->prompt_file, "A file of such text");
  text->add_option("--text-file", flags->text_file,
                   "A text as checkpoints spell it: control tokens and 0xFF bytes escaped");
  text->require_option(1);
  CLI::Option* model = command->add_option(
      "--model-fp", flags->model_fp,
      "Fingerprint of the model, 64 hex digits; without it the only namespace there is");
  CLI::Option* quant = command->add_option("--quant", flags->quant, "Weight and KV dtype");
  CLI::Option* params = command->add_option("--ctx-params", flags->ctx_params,
                                            "What else changes state, 64 hex digits");
  model->needs(quant)->needs(params);
  quant->needs(model);
  params->needs(model);
  command->callback([=] { *chosen = [=](Context& context) { return Run(context, *flags); }; });
}

}  // namespace kvmesh::cli

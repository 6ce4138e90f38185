#include "tools/kvmesh/generation.h"

#include <chrono>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/hex.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::cli {
namespace {

// Generate and Chat stream messages of different types with the same three events.
template <typename Response, typename Start>
absl::Status Run(Start start, absl::Duration timeout, Interrupt& interrupt, const TextSink& sink,
                 GenerationResult* result) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
  auto stream = start(&context);
  Response response;
  bool complete = false;
  while (stream->Read(&response)) {
    if (response.has_delta()) {
      for (const uint32_t id : response.delta().token_ids()) result->token_ids.push_back(id);
      result->text += response.delta().text();
      if (!response.delta().text().empty()) sink(response.delta().text());
    } else if (response.has_finished()) {
      result->finished = response.finished();
      complete = true;
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return rpc::FromGrpc(status);
  if (!complete) return absl::InternalError("the router ended the answer without its last message");
  return absl::OkStatus();
}

// "PARTIAL: 1536 restored from disk", "COLD: no_row": what was restored, or why nothing.
std::string Reuse(const v1::Usage& usage) {
  std::vector<std::string> details;
  if (!usage.cause().empty()) details.push_back(usage.cause());
  const std::map<std::string, uint32_t> tiers(usage.cached_by_tier().begin(),
                                              usage.cached_by_tier().end());
  for (const auto& [tier, tokens] : tiers) {
    details.push_back(absl::StrFormat("%d restored from %s", tokens, tier));
  }
  if (usage.drifted_tokens() > 0) {
    details.push_back(absl::StrFormat("%d drifted", usage.drifted_tokens()));
  }
  return absl::StrCat(usage.outcome(), details.empty() ? "" : ": ", absl::StrJoin(details, ", "));
}

}  // namespace

absl::Status RunGenerate(v1::RouterService::Stub& router, const v1::GenerateRequest& request,
                         absl::Duration timeout, Interrupt& interrupt, const TextSink& sink,
                         GenerationResult* result) {
  return Run<v1::GenerateResponse>(
      [&](grpc::ClientContext* context) { return router.Generate(context, request); }, timeout,
      interrupt, sink, result);
}

absl::Status RunChat(v1::RouterService::Stub& router, const v1::ChatRequest& request,
                     absl::Duration timeout, Interrupt& interrupt, const TextSink& sink,
                     GenerationResult* result) {
  return Run<v1::ChatResponse>(
      [&](grpc::ClientContext* context) { return router.Chat(context, request); }, timeout,
      interrupt, sink, result);
}

std::string FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_EOS:
      return "eos";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_STOP:
      return "stop";
    default:
      return "unknown";
  }
}

Json ToJson(const GenerationResult& result) {
  const v1::Finished& finished = result.finished;
  const v1::Usage& usage = finished.usage();
  Json by_tier = Json::object();
  for (const auto& [tier, tokens] : usage.cached_by_tier()) by_tier[tier] = tokens;
  Json per_token = Json::array();
  for (const double ms : finished.timings().per_token_ms()) per_token.push_back(ms);
  return {{"token_ids", result.token_ids},
          {"text", result.text},
          {"finish_reason", FinishName(finished.reason())},
          {"finish_key", HexEncode(finished.finish_key())},
          {"usage",
           {{"prompt_tokens", usage.prompt_tokens()},
            {"completion_tokens", usage.completion_tokens()},
            {"cached_tokens", usage.cached_tokens()},
            {"cached_by_tier", by_tier},
            {"drifted_tokens", usage.drifted_tokens()},
            {"outcome", usage.outcome()},
            {"cause", usage.cause()},
            {"reprefills", usage.reprefills()},
            {"repairs", usage.repairs()}}},
          {"timings",
           {{"ttft_ms", finished.timings().ttft_ms()},
            {"tokens_per_second", finished.timings().tokens_per_second()},
            {"per_token_ms", per_token}}}};
}

std::string Summary(const GenerationResult& result) {
  const v1::Finished& finished = result.finished;
  return absl::StrFormat(
      "[%d prompt tokens, %s; %d tokens, first after %.0f ms, %.1f tokens/s, ended by %s]",
      finished.usage().prompt_tokens(), Reuse(finished.usage()),
      finished.usage().completion_tokens(), finished.timings().ttft_ms(),
      finished.timings().tokens_per_second(), FinishName(finished.reason()));
}

}  // namespace kvmesh::cli

#include "services/router/grpc/router_service.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/span.h"
#include "common/rpc/status_bridge.h"
#include "common/text/detokenizer.h"
#include "services/router/core/piece_index.h"
#include "services/router/grpc/answer_reactor.h"
#include "services/router/grpc/status_report.h"

namespace kvmesh::router {
namespace {

constexpr uint32_t kListPageDefault = 100;

absl::Status Busy() {
  return WithRetryDelay(
      WithErrorInfo(absl::ResourceExhaustedError("too many requests wait for the tokenizer"),
                    {.reason = std::string(reason::kQueueFull)}),
      absl::Seconds(1));
}

uint64_t RandomSeed() {
  uint64_t seed = 0;
  RandomBytes(reinterpret_cast<uint8_t*>(&seed), sizeof(seed));
  return seed;
}

// For a call that brings none: so that its lines in the logs of all services are found together.
Trace OwnTrace(double sample_ratio) {
  char random[24];
  RandomBytes(reinterpret_cast<uint8_t*>(random), sizeof(random));
  Trace trace = NewTrace({random, sizeof(random)});
  constexpr double kRange = 18446744073709551616.0;  // 2^64
  trace.sampled = static_cast<double>(RandomSeed()) < sample_ratio * kRange;
  return trace;
}

// Long work whose caller has gone is skipped: else callers that give up, and ask again, would keep
// the pool busy for nobody.
absl::Status GoneWhileQueued() {
  return absl::CancelledError("the caller went away before its turn");
}

GenerationRegistry::Scope ScopeOf(const Caller& caller) {
  if (caller.is_operator) return {};
  return {.tenant = caller.tenant->name};
}

}  // namespace

RouterService::RouterService(Parts parts)
    : CheckedService(parts.metrics.all, parts.clock), parts_(std::move(parts)) {
  CheckServerStreaming("Generate", &RouterService::Generate);
  CheckServerStreaming("Chat", &RouterService::Chat);
  CheckUnary("Tokenize", &RouterService::Tokenize);
  CheckUnary("Detokenize", &RouterService::Detokenize);
  CheckUnary("RenderChat", &RouterService::RenderChat);
  CheckUnary("GetStatus", &RouterService::GetStatus);
  CheckUnary("ListGenerations", &RouterService::ListGenerations);
  CheckUnary("CancelGeneration", &RouterService::CancelGeneration);
  CheckUnary("Drain", &RouterService::Drain);
}

RouterService::~RouterService() = default;

RouterService::CallContext RouterService::ContextOf(grpc::CallbackServerContext* context,
                                                    const Caller& caller) const {
  const absl::Duration left =
      std::min(absl::FromChrono(context->deadline()) - absl::Now(), parts_.generation_time_max);
  CallContext result{.deadline = parts_.clock.Now() + left,
                     .trace = rpc::TraceOf(*context),
                     .tenant = caller.tenant};
  if (!result.trace.exists()) result.trace = OwnTrace(parts_.trace_sample_ratio);
  return result;
}

// A streamed answer: `start` runs in the pool, unless the caller is nobody or has gone.
template <typename Response, typename Start>
grpc::ServerWriteReactor<Response>* RouterService::Answer(grpc::CallbackServerContext* context,
                                                          absl::string_view rpc,
                                                          size_t request_bytes, Start start) {
  auto* reactor = new AnswerReactor<Response>(parts_.clock, parts_.metrics, rpc);
  const absl::StatusOr<Caller> caller = parts_.callers.Identify(*context);
  if (!caller.ok()) {
    reactor->call()->Fail(caller.status());
    return reactor;
  }
  const bool accepted = parts_.pool.Submit(
      request_bytes,
      [call = reactor->call(), context = ContextOf(context, *caller), start = std::move(start)] {
        if (call->client_gone()) return call->Fail(GoneWhileQueued());
        start(call, context);
      });
  if (!accepted) reactor->call()->Fail(Busy());
  return reactor;
}

// A cancelled call may end, and its request with it, before the work has begun: it takes a copy.
grpc::ServerWriteReactor<v1::GenerateResponse>* RouterService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return Answer<v1::GenerateResponse>(
      context, "Generate", request->ByteSizeLong(),
      [this, request = *request](const std::shared_ptr<GenerationCall>& call,
                                 const CallContext& call_context) {
        Run(call, call_context, PromptIds(parts_.model, request), request.options());
      });
}

grpc::ServerWriteReactor<v1::ChatResponse>* RouterService::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  return Answer<v1::ChatResponse>(
      context, "Chat", request->ByteSizeLong(),
      [this, request = *request](const std::shared_ptr<GenerationCall>& call,
                                 const CallContext& call_context) {
        absl::StatusOr<RenderedChat> chat =
            router::RenderChat(parts_.model, request.input(), absl::Now());
        Run(call, call_context,
            chat.ok() ? absl::StatusOr<std::vector<uint32_t>>(std::move(chat->ids)) : chat.status(),
            request.options());
      });
}

void RouterService::Run(const std::shared_ptr<GenerationCall>& call, const CallContext& context,
                        absl::StatusOr<std::vector<uint32_t>> prompt,
                        const v1::GenerationOptions& options) {
  if (!prompt.ok()) return call->Fail(prompt.status());
  absl::StatusOr<PreparedRequest> request =
      Prepare(parts_.model, ContextLength(), *std::move(prompt), options, RandomSeed());
  if (!request.ok()) return call->Fail(request.status());
  request->spec.session = RandomId<SessionId>();
  request->spec.deadline = context.deadline;
  request->spec.tenant = context.tenant;
  request->spec.jitter_seed = RandomSeed();
  request->spec.traceparent = call->StartSpan(context.trace, request->spec).ToTraceparent();
  call->Begin(*request, *parts_.model.tokenizer);
  absl::StatusOr<std::shared_ptr<GenerationDriver>> driver =
      parts_.registry.Enter(std::move(request->spec), call, MakeRetokenizer());
  if (!driver.ok()) return call->Fail(driver.status());
  call->Bind(*std::move(driver));
}

uint32_t RouterService::ContextLength() const {
  uint32_t length = parts_.model.context_length;
  for (const ShardFacts& shard : parts_.shards.Facts()) {
    if (WhyUnusable(shard, parts_.model.identity).empty() && shard.context_length > 0) {
      length = std::min(length, shard.context_length);
    }
  }
  return length;
}

// The index of a whole vocabulary is made when a tail first needs it: hardly ever.
Retokenizer RouterService::MakeRetokenizer() {
  return [this](absl::Span<const std::string> pieces) {
    std::call_once(pieces_once_,
                   [this] { pieces_ = std::make_unique<PieceIndex>(*parts_.model.tokenizer); });
    return pieces_->Ids(pieces);
  };
}

// Runs `work`, which fills the response, here or (with the size of its request) in the pool, and
// ends the call with its status.
template <typename Work>
grpc::ServerUnaryReactor* RouterService::Unary(grpc::CallbackServerContext* context,
                                               absl::string_view rpc, Access access,
                                               std::optional<size_t> pooled_bytes, Work work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto finish = [reactor, timer = metrics::RpcTimer(parts_.metrics.all, parts_.clock, rpc)](
                    const absl::Status& status) mutable {
    const grpc::Status result = rpc::ToGrpc(status);
    timer.Finish(rpc::CodeName(result.error_code()));
    reactor->Finish(result);
  };
  absl::StatusOr<Caller> caller = access == Access::kOperators
                                      ? parts_.callers.IdentifyOperator(*context)
                                      : parts_.callers.Identify(*context);
  if (!caller.ok()) {
    finish(caller.status());
    return reactor;
  }
  const bool pooled = pooled_bytes.has_value();
  auto run = [work = std::move(work), caller = *std::move(caller), finish, context,
              pooled]() mutable {
    finish(pooled && context->IsCancelled() ? GoneWhileQueued() : work(caller));
  };
  if (!pooled) {
    run();
  } else if (!parts_.pool.Submit(*pooled_bytes, run)) {
    auto refuse = finish;
    refuse(Busy());
  }
  return reactor;
}

grpc::ServerUnaryReactor* RouterService::Tokenize(grpc::CallbackServerContext* context,
                                                  const v1::TokenizeRequest* request,
                                                  v1::TokenizeResponse* response) {
  return Unary(context, "Tokenize", Access::kClients, request->ByteSizeLong(),
               [this, request, response](const Caller&) -> absl::Status {
                 v1::GenerateRequest prompt;
                 prompt.set_text(request->text());
                 prompt.set_add_special_tokens(request->add_special_tokens());
                 prompt.set_plain_text(request->plain_text());
                 KVMESH_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                                         PromptIds(parts_.model, prompt));
                 for (const uint32_t id : ids) {
                   const absl::string_view piece = parts_.model.tokenizer->TokenBytes(id);
                   response->add_ids(id);
                   response->add_pieces(piece.data(), piece.size());
                 }
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* RouterService::Detokenize(grpc::CallbackServerContext* context,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  return Unary(context, "Detokenize", Access::kClients, request->ByteSizeLong(),
               [this, request, response](const Caller&) -> absl::Status {
                 v1::GenerateRequest ids;
                 *ids.mutable_token_ids()->mutable_ids() = request->ids();
                 KVMESH_RETURN_IF_ERROR(PromptIds(parts_.model, ids).status());
                 const text::Tokenizer& tokenizer = *parts_.model.tokenizer;
                 std::string bytes;
                 for (const uint32_t id : request->ids()) {
                   if (request->skip_special_tokens() && tokenizer.IsControl(id)) continue;
                   const absl::string_view piece = tokenizer.TokenBytes(id);
                   bytes.append(piece.data(), piece.size());
                 }
                 text::Utf8Stream utf8;
                 response->set_text(utf8.Push(bytes));
                 response->mutable_text()->append(utf8.Flush());
                 response->set_text_bytes(std::move(bytes));
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* RouterService::RenderChat(grpc::CallbackServerContext* context,
                                                    const v1::RenderChatRequest* request,
                                                    v1::RenderChatResponse* response) {
  return Unary(context, "RenderChat", Access::kClients, request->ByteSizeLong(),
               [this, request, response](const Caller&) -> absl::Status {
                 KVMESH_ASSIGN_OR_RETURN(
                     RenderedChat chat,
                     router::RenderChat(parts_.model, request->input(), absl::Now()));
                 response->mutable_ids()->Add(chat.ids.begin(), chat.ids.end());
                 response->set_text(std::move(chat.text));
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* RouterService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest*,
                                                   v1::GetStatusResponse* response) {
  return Unary(
      context, "GetStatus", Access::kClients, std::nullopt, [this, response](const Caller& caller) {
        const GenerationRegistry::Counts counts = parts_.registry.counts(ScopeOf(caller));
        response->set_generations_running(static_cast<uint32_t>(counts.running));
        response->set_generations_queued(static_cast<uint32_t>(counts.queued));
        response->set_generations_closing(static_cast<uint32_t>(counts.closing));
        response->set_generations_max(parts_.generations_max);
        response->set_draining(counts.draining);
        response->set_context_length(ContextLength());
        ReportShards(parts_.shards.Views(), parts_.shards.Facts(), parts_.model.identity, response);
        if (!caller.is_operator) HideLoad(response);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* RouterService::ListGenerations(grpc::CallbackServerContext* context,
                                                         const v1::ListGenerationsRequest* request,
                                                         v1::ListGenerationsResponse* response) {
  return Unary(
      context, "ListGenerations", Access::kClients, std::nullopt,
      [this, request, response](const Caller& caller) -> absl::Status {
        if (request->page_size() > limits::kListPageMax) {
          return absl::InvalidArgumentError(absl::StrCat("page_size is ", request->page_size(),
                                                         "; at most ", limits::kListPageMax,
                                                         " is allowed"));
        }
        std::optional<SessionId> after;
        if (!request->page_token().empty()) {
          KVMESH_ASSIGN_OR_RETURN(after, SessionId::FromHex(request->page_token(), "page_token"));
        }
        const uint32_t size = request->page_size() == 0 ? kListPageDefault : request->page_size();
        const std::vector<GenerationDriver::Info> infos =
            parts_.registry.List(ScopeOf(caller), after, size + 1);
        for (size_t i = 0; i < std::min<size_t>(infos.size(), size); ++i) {
          ReportGeneration(infos[i], response->add_generations());
        }
        if (infos.size() > size) response->set_next_page_token(infos[size - 1].session.ToHex());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* RouterService::CancelGeneration(
    grpc::CallbackServerContext* context, const v1::CancelGenerationRequest* request,
    v1::CancelGenerationResponse*) {
  return Unary(context, "CancelGeneration", Access::kClients, std::nullopt,
               [this, request](const Caller& caller) -> absl::Status {
                 KVMESH_ASSIGN_OR_RETURN(
                     const SessionId session,
                     SessionId::FromHex(request->generation_id(), "generation_id"));
                 return parts_.registry.Cancel(session, ScopeOf(caller));
               });
}

grpc::ServerUnaryReactor* RouterService::Drain(grpc::CallbackServerContext* context,
                                               const v1::RouterServiceDrainRequest*,
                                               v1::RouterServiceDrainResponse*) {
  return Unary(context, "Drain", Access::kOperators, std::nullopt, [this](const Caller&) {
    parts_.on_drain();
    return absl::OkStatus();
  });
}

}  // namespace kvmesh::router

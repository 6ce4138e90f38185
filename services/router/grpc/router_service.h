// RouterService over gRPC: checks, delegates, converts, counts. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/trace.h"
#include "common/rpc/checked_service.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "services/router/grpc/callers.h"
#include "services/router/grpc/discovery.h"
#include "services/router/grpc/generation_registry.h"
#include "services/router/grpc/prepare.h"
#include "services/router/grpc/router_metrics.h"
#include "services/router/grpc/router_model.h"
#include "services/router/grpc/work_pool.h"

namespace kvmesh::router {

class GenerationCall;
class PieceIndex;

class RouterService final : public rpc::CheckedService<v1::RouterService> {
 public:
  struct Parts {
    const RouterModel& model;
    const Clock& clock;
    Callers& callers;
    Discovery& shards;
    GenerationRegistry& registry;
    RouterMetrics& metrics;
    WorkPool& pool;
    double trace_sample_ratio = 0;       // of calls that bring no trace
    absl::Duration generation_time_max;  // deadline of calls without one, and the longest allowed
    uint32_t generations_max;
    std::function<void()> on_drain;
  };
  // All that `parts` refers to must outlive it.
  explicit RouterService(Parts parts);
  ~RouterService() override;

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerWriteReactor<v1::ChatResponse>* Chat(grpc::CallbackServerContext* context,
                                                   const v1::ChatRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* RenderChat(grpc::CallbackServerContext* context,
                                       const v1::RenderChatRequest* request,
                                       v1::RenderChatResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListGenerations(grpc::CallbackServerContext* context,
                                            const v1::ListGenerationsRequest* request,
                                            v1::ListGenerationsResponse* response) override;
  grpc::ServerUnaryReactor* CancelGeneration(grpc::CallbackServerContext* context,
                                             const v1::CancelGenerationRequest* request,
                                             v1::CancelGenerationResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::RouterServiceDrainRequest* request,
                                  v1::RouterServiceDrainResponse* response) override;

 private:
  // What a call brings besides its request.
  struct CallContext {
    MonoTime deadline;
    Trace trace;  // what the call is a part of
    TenantPtr tenant;
  };
  CallContext ContextOf(grpc::CallbackServerContext* context, const Caller& caller) const;
  void Run(const std::shared_ptr<GenerationCall>& call, const CallContext& context,
           absl::StatusOr<std::vector<uint32_t>> prompt, const v1::GenerationOptions& options);
  // The least of the model's own context and those of the shards that serve it.
  uint32_t ContextLength() const;
  Retokenizer MakeRetokenizer();
  template <typename Response, typename Start>
  grpc::ServerWriteReactor<Response>* Answer(grpc::CallbackServerContext* context,
                                             absl::string_view rpc, size_t request_bytes,
                                             Start start);
  enum class Access { kClients, kOperators };
  template <typename Work>
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, absl::string_view rpc,
                                  Access access, std::optional<size_t> pooled_bytes, Work work);

  const Parts parts_;
  std::once_flag pieces_once_;
  std::unique_ptr<PieceIndex> pieces_;
};

}  // namespace kvmesh::router

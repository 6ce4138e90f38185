// A callback service whose methods get every request, also one that does not parse: that one is
// answered here with INVALID_ARGUMENT, naming the field, and counted as every other call is where
// calls are counted.
//
// The base of an adapter; in its constructor it names its methods:
//   class RouterService final : public rpc::CheckedService<v1::RouterService> { … };
//   RouterService::RouterService(…) : CheckedService(metrics, clock) {
//     CheckUnary("Tokenize", &RouterService::Tokenize);
// A method that is not named keeps gRPC's own ways. Bidirectional methods check each message of
// their stream themselves.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/message_pool.h"
#include "common/rpc/parsed.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::rpc {

// `Api`: the generated class around Service, CallbackService and Stub. `Base`: of the methods that
// are not taken from here on, such as raw ones.
template <typename Api, typename Base = typename Api::CallbackService>
class CheckedService : public Base {
 protected:
  // A service whose calls are not counted.
  CheckedService() = default;
  // Both outlive the service.
  CheckedService(metrics::Metrics& metrics, const Clock& clock)
      : metrics_(&metrics), clock_(&clock) {}

  // `messages`, which may be null, outlives the server.
  template <typename Derived, typename Request, typename Response>
  void CheckUnary(const std::string& method,
                  grpc::ServerUnaryReactor* (Derived::*run)(grpc::CallbackServerContext*,
                                                            const Request*, Response*),
                  MessagePool<Request, Response>* messages = nullptr) {
    auto* handler = new grpc::internal::CallbackUnaryHandler<Parsed<Request>, Response>(
        [this, method, run](grpc::CallbackServerContext* context, const Parsed<Request>* request,
                            Response* response) -> grpc::ServerUnaryReactor* {
          if (request->status.ok()) {
            return (static_cast<Derived*>(this)->*run)(context, &request->message, response);
          }
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(Refusal(method, request->status));
          return reactor;
        });
    handler->SetMessageAllocator(messages);
    Mark(method, handler);
  }

  template <typename Derived, typename Request, typename Response>
  void CheckServerStreaming(const std::string& method,
                            grpc::ServerWriteReactor<Response>* (Derived::*run)(
                                grpc::CallbackServerContext*, const Request*)) {
    Mark(method, new grpc::internal::CallbackServerStreamingHandler<Parsed<Request>, Response>(
                     [this, method, run](
                         grpc::CallbackServerContext* context,
                         const Parsed<Request>* request) -> grpc::ServerWriteReactor<Response>* {
                       if (request->status.ok()) {
                         return (static_cast<Derived*>(this)->*run)(context, &request->message);
                       }
                       return new RefusedStream<Response>(Refusal(method, request->status));
                     }));
  }

  // `accept` makes the reactor of one call; its messages come as Parsed<Request>.
  template <typename Request, typename Response>
  void TakeParsedStream(const std::string& method,
                        std::function<grpc::ServerBidiReactor<Parsed<Request>, Response>*(
                            grpc::CallbackServerContext*)>
                            accept) {
    Mark(method,
         new grpc::internal::CallbackBidiHandler<Parsed<Request>, Response>(std::move(accept)));
  }

 private:
  // Ends as soon as gRPC has taken it up, and deletes itself.
  template <typename Response>
  class RefusedStream final : public grpc::ServerWriteReactor<Response> {
   public:
    explicit RefusedStream(const grpc::Status& status) { this->Finish(status); }
    void OnDone() override { delete this; }
  };

  // Takes over the handler, as gRPC's own code does it for the methods of a generated service.
  void Mark(const std::string& method, grpc::internal::MethodHandler* handler) {
    const google::protobuf::ServiceDescriptor* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            Api::service_full_name());
    this->MarkMethodCallback(service->FindMethodByName(method)->index(), handler);
  }

  grpc::Status Refusal(const std::string& method, const absl::Status& status) {
    grpc::Status result = ToGrpc(status);
    if (metrics_ != nullptr) {
      metrics::RpcTimer timer(*metrics_, *clock_, method);
      timer.Finish(CodeName(result.error_code()));
    }
    return result;
  }

  metrics::Metrics* const metrics_ = nullptr;
  const Clock* const clock_ = nullptr;
};

}  // namespace kvmesh::rpc

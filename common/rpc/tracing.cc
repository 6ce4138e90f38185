#include "common/rpc/tracing.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/ids.h"
#include "common/rpc/span.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr absl::string_view kUntraced[] = {"Forward", "Watch", "AttachStore", "Generate", "Chat"};

struct CallName {
  std::string service;  // "meta"
  std::string rpc;      // "Lookup"; empty: not traced
};

// Of "/kvmesh.v1.MetaService/Lookup".
CallName NameOf(absl::string_view method) {
  if (!absl::ConsumePrefix(&method, "/kvmesh.v1.")) return {};
  const std::vector<absl::string_view> parts = absl::StrSplit(method, '/');
  if (parts.size() != 2) return {};
  for (const absl::string_view untraced : kUntraced) {
    if (parts[1] == untraced) return {};
  }
  return {.service = absl::AsciiStrToLower(absl::StripSuffix(parts[0], "Service")),
          .rpc = std::string(parts[1])};
}

// Calls of one parent may be alike in all else.
uint64_t RandomNumber() {
  uint64_t number = 0;
  RandomBytes(reinterpret_cast<uint8_t*>(&number), sizeof(number));
  return number;
}

class CallTracer final : public grpc::experimental::Interceptor {
 public:
  explicit CallTracer(Span span) : span_(std::move(span)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      span_.End(CodeName(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  Span span_;
};

class CallTracerFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // Null: the call is not intercepted, which costs it microseconds.
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    const Trace parent = TraceOf(*info->server_context());
    if (!parent.sampled) return nullptr;
    const CallName name = NameOf(info->method());
    if (name.rpc.empty()) return nullptr;
    return new CallTracer(Span(name.service, name.rpc, parent, RandomNumber()));
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallTracer() {
  return std::make_unique<CallTracerFactory>();
}

}  // namespace kvmesh::rpc

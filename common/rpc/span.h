// One piece of work of a traced request, written as one line of the log when it ends
// (docs/tracing.md has the schema). Costs nothing unless the request is sampled. Not thread-safe.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/trace.h"

namespace kvmesh::rpc {

class Span {
 public:
  Span() = default;
  // A piece of `parent`, beginning now. `service` and `name` as in the schema: "shard", "forward";
  // `number` sets it apart from its siblings of that name.
  Span(absl::string_view service, absl::string_view name, const Trace& parent, uint64_t number = 0);
  ~Span() { End("CANCELLED"); }
  Span(Span&& other) noexcept { *this = std::move(other); }
  Span& operator=(Span&& other) noexcept;

  // What pieces of this one are part of; also where the request is not sampled.
  const Trace& trace() const { return self_; }
  // Ignored unless the span is written. Never texts, ids of tokens, or secrets.
  template <typename Value>
  void Set(const char* key, const Value& value) {
    if (open_) attributes_[key] = value;
  }
  // Writes it, once. `status`: the name of a status code.
  void End(absl::string_view status);

 private:
  Trace self_;
  std::string parent_span_id_;
  std::string service_;
  std::string name_;
  absl::Time begun_at_;
  MonoTime began_;
  bool open_ = false;
  nlohmann::ordered_json attributes_ = nlohmann::ordered_json::object();
};

// The `traceparent` of a call's metadata: what a caller says, and how it is passed on.
Trace TraceOf(const grpc::ServerContextBase& context);
void AddTrace(grpc::ClientContext& context, const Trace& trace);

}  // namespace kvmesh::rpc

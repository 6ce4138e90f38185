#include "common/rpc/span.h"

#include <glog/logging.h>

#include <utility>

#include "absl/time/clock.h"

namespace kvmesh::rpc {
namespace {

constexpr char kHeader[] = "traceparent";

MonoTime Now() {
  return MonotonicClock().Now();
}

}  // namespace

Span::Span(absl::string_view service, absl::string_view name, const Trace& parent, uint64_t number)
    : self_(ChildOf(parent, name, number)) {
  if (!self_.sampled) return;
  parent_span_id_ = parent.span_id;
  service_ = std::string(service);
  name_ = std::string(name);
  begun_at_ = absl::Now();
  began_ = Now();
  open_ = true;
}

Span& Span::operator=(Span&& other) noexcept {
  if (this == &other) return *this;
  End("CANCELLED");
  self_ = std::move(other.self_);
  parent_span_id_ = std::move(other.parent_span_id_);
  service_ = std::move(other.service_);
  name_ = std::move(other.name_);
  begun_at_ = other.begun_at_;
  began_ = other.began_;
  open_ = std::exchange(other.open_, false);
  attributes_ = std::move(other.attributes_);
  return *this;
}

void Span::End(absl::string_view status) {
  if (!std::exchange(open_, false)) return;
  const nlohmann::ordered_json line = {{"trace_id", self_.trace_id},
                                       {"span_id", self_.span_id},
                                       {"parent_span_id", parent_span_id_},
                                       {"service", service_},
                                       {"name", name_},
                                       {"start_unix_us", absl::ToUnixMicros(begun_at_)},
                                       {"duration_us", absl::ToInt64Microseconds(Now() - began_)},
                                       {"status", std::string(status)},
                                       {"attributes", std::move(attributes_)}};
  LOG(INFO) << "span "
            << line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

Trace TraceOf(const grpc::ServerContextBase& context) {
  const auto header = context.client_metadata().find(kHeader);
  if (header == context.client_metadata().end()) return {};
  return ParseTraceparent({header->second.data(), header->second.size()}).value_or(Trace());
}

void AddTrace(grpc::ClientContext& context, const Trace& trace) {
  if (trace.exists()) context.AddMetadata(kHeader, trace.ToTraceparent());
}

}  // namespace kvmesh::rpc

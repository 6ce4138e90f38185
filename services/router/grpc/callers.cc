#include "services/router/grpc/callers.h"

#include <glog/logging.h>

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls_identity.h"

namespace kvmesh::router {
namespace {

constexpr char kHeader[] = "authorization";
constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kTokenBytesMax = 4096;

// InvalidArgument: more than one header, another scheme, or no token that one could have.
absl::StatusOr<std::optional<absl::string_view>> TokenOf(const grpc::ServerContextBase& context) {
  const auto [first, end] = context.client_metadata().equal_range(kHeader);
  if (first == end) return std::nullopt;
  if (std::next(first) != end) return absl::InvalidArgumentError("authorization is there twice");
  absl::string_view value(first->second.data(), first->second.size());
  if (!absl::StartsWithIgnoreCase(value, kScheme)) {
    return absl::InvalidArgumentError("authorization is not \"Bearer TOKEN\"");
  }
  const absl::string_view token = absl::StripAsciiWhitespace(value.substr(kScheme.size()));
  if (token.empty() || token.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token has ", token.size(), " bytes; 1 to ", kTokenBytesMax));
  }
  return token;
}

}  // namespace

Callers::Callers(CallersOptions options, metrics::Metrics& metrics)
    : options_(std::move(options)),
      metrics_(metrics),
      file_ok_(metrics.Gauge("clients_file_ok",
                             "1: the file of clients is in force as it stands; 0: it is wrong")) {
  file_ok_.Set(1);
}

absl::Status Callers::Load() {
  if (options_.clients_file.empty()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  return Read();
}

absl::Status Callers::Read() {
  version_ = FileVersionOf(options_.clients_file);
  KVMESH_ASSIGN_OR_RETURN(const std::string json, ReadSmallFile(options_.clients_file));
  absl::StatusOr<TenantTable> table = TenantTable::Parse(json);
  if (!table.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.clients_file, ": ", table.status().message()));
  }
  LOG(INFO) << table->tenant_count() << " tenants with " << table->key_count() << " keys";
  table_ = std::make_shared<const TenantTable>(*std::move(table));
  return absl::OkStatus();
}

std::shared_ptr<const TenantTable> Callers::Table() {
  if (options_.clients_file.empty()) return nullptr;
  MutexLock lock(&mutex_);
  if (FileVersionOf(options_.clients_file) == version_) return table_;
  const absl::Status loaded = Read();
  file_ok_.Set(loaded.ok() ? 1 : 0);
  if (!loaded.ok()) LOG(ERROR) << "the clients of before stay: " << loaded.message();
  return table_;
}

absl::Status Callers::Refuse(const char* reason, const absl::Status& status) {
  metrics_
      .Counter("callers_refused_total", "Calls turned away for who made them, by reason",
               {{"reason", reason}})
      .Increment();
  return status;
}

absl::StatusOr<Caller> Callers::Identify(const grpc::ServerContextBase& context) {
  // Without certificates there is nobody to tell an operator from: whoever reaches the port is one,
  // unless tokens say who is who.
  const bool by_certificate =
      options_.tls && rpc::RolesOfPeer(*context.auth_context()).Has(rpc::Role::kOperator);
  const std::shared_ptr<const TenantTable> table = Table();
  if (table == nullptr) return Caller{.is_operator = by_certificate || !options_.tls};
  const absl::StatusOr<std::optional<absl::string_view>> token = TokenOf(context);
  if (!token.ok()) {
    return Refuse("malformed", absl::UnauthenticatedError(token.status().message()));
  }
  if (!token->has_value()) {
    if (by_certificate) return Caller{.is_operator = true};
    return Refuse("no_token",
                  absl::UnauthenticatedError("a token is needed: \"authorization: Bearer TOKEN\""));
  }
  TenantPtr tenant = table->Find(**token);
  if (tenant == nullptr) {
    return Refuse("unknown_token", absl::UnauthenticatedError("the token is nobody's"));
  }
  const bool is_operator = by_certificate || tenant->is_operator;
  return Caller{.tenant = std::move(tenant), .is_operator = is_operator};
}

absl::StatusOr<Caller> Callers::IdentifyOperator(const grpc::ServerContextBase& context) {
  KVMESH_ASSIGN_OR_RETURN(Caller caller, Identify(context));
  if (!caller.is_operator) {
    return Refuse("not_operator", absl::PermissionDeniedError("this call is for operators"));
  }
  return caller;
}

}  // namespace kvmesh::router

// Who calls this router: told by the role in the caller's certificate and by its bearer token.
// Thread-safe. The file of clients is read again when it changes; one that is wrong is logged, and
// the clients before it stay.
#pragma once

#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/small_file.h"
#include "common/metrics/metrics.h"
#include "services/router/core/tenants.h"

namespace kvmesh::router {

struct Caller {
  TenantPtr tenant = NoTenant();
  // Sees everybody's generations and the load of the mesh, and may drain it.
  bool is_operator = false;
};

struct CallersOptions {
  std::string clients_file;  // empty: there are no tenants, and no token is asked for
  bool tls = false;          // certificates tell roles
};

class Callers {
 public:
  // `metrics` must outlive it. With a file nobody is known before Load.
  Callers(CallersOptions options, metrics::Metrics& metrics);
  // NotFound, InvalidArgument: of the file, with its path. OK without one.
  absl::Status Load();

  // Unauthenticated: no token where one is needed, or nobody's.
  absl::StatusOr<Caller> Identify(const grpc::ServerContextBase& context);
  // Also PermissionDenied: it is no operator.
  absl::StatusOr<Caller> IdentifyOperator(const grpc::ServerContextBase& context);

 private:
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const TenantTable> Table();
  absl::Status Refuse(const char* reason, const absl::Status& status);

  const CallersOptions options_;
  metrics::Metrics& metrics_;
  prometheus::Gauge& file_ok_;
  Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);
  // Shared with the calls that look a token up.
  std::shared_ptr<const TenantTable> table_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const TenantTable>();
};

}  // namespace kvmesh::router

// Early return on a non-OK status.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KVMESH_CONCAT_INNER(a, b) a##b
#define KVMESH_CONCAT(a, b) KVMESH_CONCAT_INNER(a, b)

#define KVMESH_RETURN_IF_ERROR(expr)               \
  do {                                             \
    absl::Status kvmesh_status = (expr);           \
    if (!kvmesh_status.ok()) return kvmesh_status; \
  } while (false)

#define KVMESH_ASSIGN_OR_RETURN(lhs, expr) \
  KVMESH_ASSIGN_OR_RETURN_IMPL(KVMESH_CONCAT(kvmesh_statusor_, __LINE__), lhs, expr)
#define KVMESH_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(tmp).value()  // without parentheses: it may be a declaration

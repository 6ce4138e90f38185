// Which roles may call which method, where that is narrower than who may call the service (Roles of
// TlsOptions::callers, which are asked first): each arrow of the mesh has its methods, and what
// looks across tenants, or ends and deletes, is for operators (DESIGN §11). Pure.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "common/rpc/role.h"

namespace kvmesh::rpc {

// Of a method by its path, "/kvmesh.v1.MetaService/Reserve". None: whoever may call the service
// (the router's methods, which know their callers by tokens; health; reflection).
std::optional<Roles> CallersOfMethod(absl::string_view path);

}  // namespace kvmesh::rpc

// The namespace of a Forward stream as keys of stored state spell it.
#pragma once

#include <string>

#include "common/forward/frames.h"
#include "common/slab/content_key.h"

namespace kvmesh::forward {

inline slab::KeyNamespace KeyNamespaceOf(const CacheNamespace& cache_namespace) {
  return {.model_fp = std::string(cache_namespace.model_fp.bytes()),
          .quant = cache_namespace.quant,
          .ctx_params = std::string(cache_namespace.ctx_params_hash.bytes())};
}

}  // namespace kvmesh::forward

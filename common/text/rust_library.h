// What calls into the Rust library need: its slices, sinks and codes as C++ values. Internal to
// this folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/text/rust/kvmesh_text.h"

namespace kvmesh::text {

KtSlice ToSlice(absl::string_view text);

// Both copy what the library writes into `out`, which must outlive the call.
KtSink StringSink(std::string* out);

template <typename T>
KtSink VectorSink(std::vector<T>* out) {
  const auto write = [](void* user, const void* data, size_t size_bytes) {
    const T* values = static_cast<const T*>(data);
    static_cast<std::vector<T>*>(user)->assign(values, values + size_bytes / sizeof(T));
  };
  return KtSink{write, out};
}

// InvalidArgument, Unimplemented or Internal with the library's message; Ok for KT_OK.
absl::Status ToStatus(int32_t code, const std::string& message);

}  // namespace kvmesh::text

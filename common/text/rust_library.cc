#include "common/text/rust_library.h"

namespace kvmesh::text {

KtSlice ToSlice(absl::string_view text) {
  return KtSlice{reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

KtSink StringSink(std::string* out) {
  const auto write = [](void* user, const void* data, size_t size_bytes) {
    static_cast<std::string*>(user)->assign(static_cast<const char*>(data), size_bytes);
  };
  return KtSink{write, out};
}

absl::Status ToStatus(int32_t code, const std::string& message) {
  switch (code) {
    case KT_OK:
      return absl::OkStatus();
    case KT_INVALID_ARGUMENT:
      return absl::InvalidArgumentError(message);
    case KT_UNIMPLEMENTED:
      return absl::UnimplementedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace kvmesh::text

// The safetensors container and index. Every byte of every tensor is read, so that a view beyond
// the file shows.
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = kvmesh::model::ParseSafetensors({data, size});
  volatile uint8_t sink = 0;
  if (tensors.ok()) {
    for (const auto& tensor : *tensors) {
      for (const uint8_t byte : tensor.data) sink = sink ^ byte;
    }
  }
  (void)kvmesh::model::ParseSafetensorsIndex(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}

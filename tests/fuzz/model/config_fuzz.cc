// config.json and generation_config.json: one input, the second file after a NUL.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/model/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  std::optional<absl::string_view> generation;
  if (split != absl::string_view::npos) generation = input.substr(split + 1);
  (void)kvmesh::model::ConfigFromHuggingFace(input.substr(0, split), generation);
  return 0;
}

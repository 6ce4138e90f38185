// The GGUF container, its typed values, and the configuration and tensors made from them.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/gguf.h"
#include "common/model/gguf_config.h"
#include "common/model/tensor_layout.h"

namespace {

using kvmesh::model::GgufFile;

void ReadEveryValue(const GgufFile& file) {
  for (const auto& key : file.keys()) {
    (void)file.GetUint(key, 0, UINT64_MAX);
    (void)file.GetFloat(key);
    (void)file.GetBool(key);
    (void)file.GetString(key);
    (void)file.GetStrings(key);
    (void)file.GetInts(key);
    (void)file.GetFloats(key);
  }
}

// The first row of every tensor, if it is short.
void WidenRows(const GgufFile& file) {
  for (const auto& tensor : file.tensors()) {
    const uint64_t elements = tensor.shape.back();
    if (elements > 4096) continue;
    const auto& info = kvmesh::model::InfoOf(tensor.type);
    std::vector<float> row(elements);
    kvmesh::model::Dequantize(tensor.type,
                              tensor.data.subspan(0, elements / info.block_size * info.block_bytes),
                              absl::MakeSpan(row));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = GgufFile::Parse({data, size});
  if (!file.ok()) return 0;
  ReadEveryValue(*file);
  WidenRows(*file);
  const auto config = kvmesh::model::ConfigFromGguf(*file);
  if (!config.ok()) return 0;
  std::vector<kvmesh::model::StoredTensor> stored;
  for (const auto& tensor : file->tensors()) {
    stored.push_back(
        {.name = tensor.name, .type = tensor.type, .shape = tensor.shape, .data = tensor.data});
  }
  (void)kvmesh::model::ResolveTensors(*config, kvmesh::model::TensorNaming::kGguf, stored);
  return 0;
}

// The head of any file, of any claimed size: 8 bytes of size, then the file's first bytes. What is
// accepted must add up and be written again byte for byte.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/slab/format.h"
#include "common/slab/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvmesh::slab;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 8) return 0;
  const auto file_bytes = wire::Get<uint64_t>(input, 0);
  const absl::string_view bytes = input.substr(8, kHeadBytes);
  const auto head = ParseHead(bytes, file_bytes);
  if (!head.ok()) return 0;
  SlabMeta meta;
  meta.header = head->header;
  meta.meta_bytes = head->meta_bytes;
  if (meta.file_bytes() != file_bytes || EncodeHead(*head) != std::string(bytes)) std::abort();
  return 0;
}

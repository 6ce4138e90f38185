// Any meta section: 4 bytes of token count, 2 of layers, 8 of payload size, then TLVs, whose CRC is
// made right so that the rules behind it are reached. What is accepted is read again after it was
// written, and its pieces lie within the payload.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/slab/crc32c.h"
#include "common/slab/format.h"
#include "common/slab/pieces.h"
#include "common/slab/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvmesh::slab;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 14) return 0;
  Head head;
  head.header.token_count = wire::Get<uint32_t>(input, 0) % (1U << 20) + 1;
  head.header.layers = {.begin = wire::Get<uint8_t>(input, 4)};
  head.header.layers.end = head.header.layers.begin + 1 + wire::Get<uint8_t>(input, 5) % 64;
  head.header.payload_bytes = wire::Get<uint64_t>(input, 6) % kPayloadBytesMax;
  const std::string tlvs(input.substr(14));
  head.meta_bytes = static_cast<uint32_t>(tlvs.size());
  head.meta_crc32c = Crc32c(tlvs);
  const auto meta = ParseMeta(head, tlvs);
  if (!meta.ok()) return 0;
  for (const Piece& piece : AllPieces(*meta)) {
    if (piece.offset + piece.length > meta->file_bytes() - kTrailerBytes) std::abort();
  }
  const std::string again = EncodeTlvs(*meta);
  head.meta_bytes = static_cast<uint32_t>(again.size());
  head.meta_crc32c = Crc32c(again);
  if (!ParseMeta(head, again).ok()) std::abort();
  return 0;
}

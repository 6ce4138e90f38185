// A whole file through both readers: the stream verifier takes exactly what the reader takes. The
// first two bytes say which CRCs are made right, so that the rules behind them are reached.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/slab/crc32c.h"
#include "common/slab/reader.h"
#include "common/slab/stream_verifier.h"
#include "common/slab/wire.h"

namespace {

using namespace kvmesh::slab;

void Replace(uint32_t crc, size_t offset, std::string* file) {
  std::string bytes;
  wire::Put<uint32_t>(crc, &bytes);
  file->replace(offset, bytes.size(), bytes);
}

void RepairCrcs(uint8_t which, std::string* file) {
  if (file->size() < kHeadBytes + kTrailerBytes) return;
  const auto meta_bytes = wire::Get<uint32_t>(*file, 48);
  if ((which & 1) != 0 && meta_bytes <= file->size() - kHeadBytes) {
    Replace(Crc32c(absl::string_view(*file).substr(kHeadBytes, meta_bytes)), 52, file);
  }
  if ((which & 2) != 0) {
    const absl::string_view view = *file;
    uint32_t crc = Crc32c(view.substr(file->size() - kTrailerBytes, 20));
    crc = ExtendCrc32c(crc, view.substr(0, 12));
    crc = ExtendCrc32c(crc, view.substr(16, 16));
    crc = ExtendCrc32c(crc, view.substr(40, 8));
    Replace(crc, file->size() - 4, file);
  }
}

bool Reads(const std::string& file) {
  const MemorySource source(file);
  const auto reader = SlabReader::Open(source);
  if (!reader.ok() || !reader->VerifyPayload().ok()) return false;
  for (const CutPoint& cut : reader->meta().cut_points) {
    for (uint32_t layer = reader->meta().header.layers.begin;
         layer < reader->meta().header.layers.end; ++layer) {
      reader->ReadLayerPrefix(layer, cut.token_count).status().IgnoreError();
    }
  }
  return true;
}

bool Streams(const std::string& file, size_t step) {
  SlabStreamVerifier verifier(file.size());
  for (size_t at = 0; at < file.size(); at += step) {
    if (!verifier.Append(absl::string_view(file).substr(at, step)).ok()) return false;
  }
  return verifier.Finish().ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 2, size - 2);
  RepairCrcs(data[0], &file);
  if (Reads(file) != Streams(file, 1 + data[1] * 16)) std::abort();
  return 0;
}

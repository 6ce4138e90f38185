// Verifies a slab while its bytes arrive in order, keeping only head, meta section and trailer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/slab/format.h"
#include "common/slab/pieces.h"

namespace kvmesh::slab {

// Not thread-safe. Append until all `file_bytes` have come, then Finish. After an error it answers
// that error for ever.
class SlabStreamVerifier {
 public:
  explicit SlabStreamVerifier(uint64_t file_bytes) : file_bytes_(file_bytes) {}

  // DataLoss: the bytes so far are not the beginning of a sound slab of that size.
  absl::Status Append(absl::string_view bytes);
  // DataLoss: bytes are missing.
  absl::Status Finish() const;

  // Once header and meta section have come and are sound.
  const SlabMeta* meta() const { return meta_ ? &*meta_ : nullptr; }

 private:
  enum class Part { kHead, kTlvs, kPadding, kPayload, kTrailer, kDone };

  absl::Status Step(absl::string_view* bytes);
  absl::Status EndHead();
  absl::Status EndTlvs();
  absl::Status TakePayload(absl::string_view* bytes);
  // Moves bytes into `buffer` until it has `wanted`; whether it has.
  static bool Fill(uint64_t wanted, absl::string_view* bytes, std::string* buffer);
  void StartPayload();

  const uint64_t file_bytes_;
  absl::Status status_;
  Part part_ = Part::kHead;
  std::string head_bytes_;
  std::string buffer_;
  std::optional<Head> head_;
  std::optional<SlabMeta> meta_;
  std::vector<Piece> pieces_;
  size_t piece_ = 0;
  uint32_t piece_taken_ = 0;
  uint32_t piece_crc_ = 0;
  uint64_t padding_left_ = 0;
};

}  // namespace kvmesh::slab

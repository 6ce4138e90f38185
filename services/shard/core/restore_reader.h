// Takes what a store answers to a Get of layers, byte by byte as it comes, verifies all of it and
// builds layer states. Nothing else of the session is touched: the caller uses the states only
// after Finish. Not thread-safe; several readers may fill different layers of one SessionState.
//
// The answer is: header and meta section, for each layer asked for the pieces that hold its first
// tokens, trailer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/slab/format.h"
#include "common/slab/pieces.h"
#include "services/shard/core/checkpoint.h"
#include "services/shard/core/job.h"

namespace kvmesh::shard {

// What is wanted of one slab. All references outlive the reader.
struct RestoreWant {
  const SlabRead& read;
  const forward::CacheNamespace& cache_namespace;
  absl::Span<const uint32_t> tokens;  // ids, from the first: so many tokens' state is wanted
  slab::DType kv_dtype;
  const Vocabulary& vocabulary;
  SessionState& state;  // fresh; the layers of `read` are filled
};

class RestoreReader {
 public:
  // `file_bytes`: the slab's size, as the store says.
  RestoreReader(const RestoreWant& want, uint64_t file_bytes)
      : want_(want), file_bytes_(file_bytes) {}

  // The failure, once there is one; the bytes that follow are then of no interest.
  // kCorrupt, kWrongSlab, kTokensDiffer, kWrongState, kNoMemory.
  std::optional<RestoreFailure> Append(absl::string_view bytes);
  // After the last byte. kCorrupt: bytes are missing.
  std::optional<RestoreFailure> Finish();

  // The stored row after layer `end` - 1 at the last of `tokens`; empty: the slab has none.
  std::vector<float> LastRow(uint32_t end) const;

 private:
  enum class Part { kHead, kTlvs, kPieces, kTrailer, kDone };
  struct Layer {
    uint32_t number = 0;
    size_t pieces_end = 0;  // in pieces_
  };

  // Each step's status says the fault by its code: DataLoss kCorrupt, FailedPrecondition
  // kWrongSlab, OutOfRange kTokensDiffer, Unimplemented kWrongState, ResourceExhausted kNoMemory.
  absl::Status Step(absl::string_view* bytes);
  absl::Status EndHead();
  absl::Status EndTlvs();
  absl::Status CheckIdentity() const;
  absl::Status CheckTokens() const;
  absl::Status CheckState(uint32_t layer) const;
  absl::Status TakePiece(absl::string_view* bytes);
  // Copies what of these bytes of the file is wanted of the present layer.
  void CopyWanted(uint64_t file_offset, absl::string_view bytes);
  absl::Status EndLayer();
  std::optional<RestoreFailure> Settle(const absl::Status& status);
  static bool Fill(uint64_t wanted, absl::string_view* bytes, std::string* buffer);

  const RestoreWant want_;
  const uint64_t file_bytes_;
  std::optional<RestoreFailure> failure_;
  Part part_ = Part::kHead;
  std::string head_bytes_;
  std::string buffer_;
  std::optional<slab::Head> head_;
  std::optional<slab::SlabMeta> meta_;
  std::vector<slab::Piece> pieces_;  // of all layers wanted, in order
  std::vector<Layer> layers_;
  size_t layer_ = 0;
  size_t piece_ = 0;
  uint32_t piece_taken_ = 0;
  uint32_t piece_crc_ = 0;
  std::vector<uint8_t> keys_;  // of the present layer
  std::vector<uint8_t> values_;
};

}  // namespace kvmesh::shard

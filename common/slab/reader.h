// Reads a slab from wherever its bytes lie.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/slab/format.h"
#include "common/slab/pieces.h"

namespace kvmesh::slab {

// A file, memory, or what came over the wire.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` from `offset` on. Any error; what ends early is one.
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const = 0;
};

// Bytes that somebody else owns.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(absl::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override;

 private:
  absl::string_view bytes_;
};

// All of a slab but its payload, verified.
struct Envelope {
  std::string head;  // header and meta section, with the padding up to the payload
  std::string trailer;
  SlabMeta meta;
};

// DataLoss: not a sound slab of version 2; else the source's own error.
absl::StatusOr<Envelope> ReadEnvelope(const ByteSource& source);

// Thread-safe if its source is. Nothing is answered that was not verified.
class SlabReader {
 public:
  // Checks everything but the payload. `source` must outlive the reader. Errors as of ReadEnvelope.
  static absl::StatusOr<SlabReader> Open(const ByteSource& source);

  const SlabMeta& meta() const { return meta_; }

  // The state of one layer, without padding. DataLoss: its CRC is wrong.
  absl::StatusOr<std::string> ReadLayer(uint32_t layer) const;
  // The state of its first `tokens` tokens: the first rows of K, then those of V. Reads only the
  // pieces that hold them. Errors as of PiecesOf.
  absl::StatusOr<std::string> ReadLayerPrefix(uint32_t layer, uint32_t tokens) const;
  // Every piece, at most kPieceBytes in memory at a time.
  absl::Status VerifyPayload() const;

 private:
  SlabReader(const ByteSource& source, SlabMeta meta) : source_(&source), meta_(std::move(meta)) {}
  absl::Status ReadPiece(const Piece& piece, std::string* out) const;

  const ByteSource* source_;
  SlabMeta meta_;
};

}  // namespace kvmesh::slab

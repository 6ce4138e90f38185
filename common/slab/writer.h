// Makes a slab out of state that lies somewhere else, without copying the payload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/slab/format.h"

namespace kvmesh::slab {

// A finished slab: its own head and trailer, and views of the caller's regions between them.
class SlabImage {
 public:
  SlabImage(std::string head, std::vector<absl::string_view> payload, SlabMeta meta);

  const SlabMeta& meta() const { return meta_; }
  uint64_t size() const { return meta_.file_bytes(); }
  // All bytes in order. The views hold while the image is not moved and the regions live.
  std::vector<absl::string_view> Parts() const;
  // One copy of everything; for tests and small slabs.
  std::string ToString() const;

 private:
  std::string head_;  // header, meta section, padding
  std::vector<absl::string_view> payload_;
  std::string trailer_;
  SlabMeta meta_;
};

// Not thread-safe. Create, AddRegion once a layer in layer order, Finish.
class SlabWriter {
 public:
  // Of `meta` the caller fills: header (reason, quant_bits, context_size, layers, times),
  // namespace, labels, token_ids, text, last_output, write_id, and of each cut point token_count
  // and text_bytes. The rest is computed. InvalidArgument: what no reader would take.
  static absl::StatusOr<SlabWriter> Create(SlabMeta meta);

  // `parts`, one behind another, are the next layer's state; they must live as long as the image.
  // InvalidArgument: a size that does not fit kind and token count, or a layer too many.
  absl::Status AddRegion(StateKind kind, DType dtype, uint32_t first_position,
                         absl::Span<const absl::string_view> parts);

  // InvalidArgument: layers are missing, or a reader would refuse the result (the message is its).
  absl::StatusOr<SlabImage> Finish();

 private:
  explicit SlabWriter(SlabMeta meta) : meta_(std::move(meta)) {}

  SlabMeta meta_;
  std::vector<absl::string_view> payload_;
};

}  // namespace kvmesh::slab

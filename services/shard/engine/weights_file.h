// Packed weights of one part of a model in a file. A file is published whole: written under a name
// of its own, synced, renamed. Readers trust nothing: magic, version, key, sizes and checksums are
// compared before a byte is used.
//
// Little-endian:
//   0   u8[8] "KVMPACKD"   u32 version   u32 count of matrices
//   16  u8[32] digest      u8[32] numerics id, filled up with zeros
//   80  u64 length of the file
//   88  count times: u32 type, u32 rope_head_dim, u64 rows, u64 columns, u64 offset,
//       u32 crc32c of the matrix, u32 zero
//   then u32 crc32c of all before
//   the matrices, each at a multiple of 64, zeros between them
//
// The weights are read, not mapped: a mapping would do without huge pages, which decoding pays for
// at every token, and would end the process if the file were cut short.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/weights.h"
#include "services/shard/engine/compute_pool.h"
#include "services/shard/engine/packed_matrix.h"
#include "services/shard/engine/weight_arena.h"

namespace kvmesh::shard {

// Raised when a panel's layout changes.
inline constexpr uint32_t kWeightsFileVersion = 1;

struct WeightsFileKey {
  struct Matrix {
    model::WeightType type;
    uint64_t rows;
    uint64_t columns;
    uint32_t rope_head_dim;  // that rows were put in half-layout order for; 0: as stored
  };
  Sha256Digest digest;
  std::string numerics_id;  // at most 32 bytes
  std::vector<Matrix> matrices;
};

// FOLDER/DIGEST-NUMERICS.kvmweights
std::string WeightsFilePath(const std::string& folder, const WeightsFileKey& key);

// NotFound: no such file. DataLoss: torn, damaged, of another version or for another key; what
// differs is named. PermissionDenied, Unavailable: the system's reason. ResourceExhausted: no
// memory.
absl::StatusOr<std::vector<PackedMatrix>> ReadWeightsFile(const std::string& path,
                                                          const WeightsFileKey& key,
                                                          ComputePool& pool, WeightArena& arena);

// Replaces what is there. `matrices` are those of the key. PermissionDenied, Unavailable: the
// system's reason; nothing is left behind.
absl::Status WriteWeightsFile(const std::string& path, const WeightsFileKey& key,
                              absl::Span<const PackedMatrix> matrices);

}  // namespace kvmesh::shard

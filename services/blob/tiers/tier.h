// A medium that holds whole slabs. It neither judges nor accounts: SlabStore does both.
// Thread-safe; calls about one name do not overlap, but for reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/slab/reader.h"
#include "services/blob/core/slab_name.h"

namespace kvmesh::blob {

// A slab that is being written and that nobody sees. Discarded by its destructor unless it was
// published. Not thread-safe.
class SlabWrite {
 public:
  virtual ~SlabWrite() = default;
  // Behind what was appended before. ResourceExhausted MEDIUM_FULL: somebody else took the room.
  virtual absl::Status Append(absl::Span<const absl::string_view> parts) = 0;
  // The slab is on the medium, wholly, under its name. AlreadyExists: a slab of that name is there,
  // and stays. After any other error nothing of this one can be seen.
  virtual absl::Status Publish() = 0;
};

// What start-up found and cleared away.
struct Recovered {
  std::vector<SlabName> names;                 // not verified
  std::map<std::string, uint64_t> removed;     // by cause: "temporary"
  std::map<std::string, uint64_t> left_alone;  // by cause: "foreign_name"
};

class Tier {
 public:
  virtual ~Tier() = default;
  // What the tier keeps of removed slabs, to be used again, takes at most `spare_bytes_max` then.
  // ResourceExhausted MEDIUM_FULL: the medium has no room for all bytes besides what other writes
  // will take.
  virtual absl::StatusOr<std::unique_ptr<SlabWrite>> Create(const SlabName& name,
                                                            uint64_t file_bytes,
                                                            uint64_t spare_bytes_max) = 0;
  // Gives the medium back what is kept of removed slabs.
  virtual void DropSpare() = 0;
  // Readable as long as it lives, also after Remove. NotFound.
  virtual absl::StatusOr<std::unique_ptr<slab::ByteSource>> Open(const SlabName& name) = 0;
  // NotFound counts as done.
  virtual absl::Status Remove(const SlabName& name) = 0;
  // Moves a bad slab out of sight; how many bytes the quarantine then takes in all.
  virtual absl::StatusOr<uint64_t> Quarantine(const SlabName& name) = 0;
  // Rewrites the two fields in place.
  virtual absl::Status WriteUse(const SlabName& name, uint32_t hit_count,
                                uint64_t last_used_time_s) = 0;
  // Once, before all else: removes what a dead process left half done.
  virtual absl::StatusOr<Recovered> Recover() = 0;
  virtual uint64_t quarantined_bytes() const = 0;
};

}  // namespace kvmesh::blob

#include "services/blob/tiers/ram_tier.h"

#include <cstring>
#include <utility>

#include "common/slab/format.h"

namespace kvmesh::blob {

// One slab. Its bytes but for the two usage fields do not change once it is published.
class RamTier::Memory {
 public:
  static absl::StatusOr<std::shared_ptr<Memory>> Make(MappingPool& pool, uint64_t bytes,
                                                      uint64_t spare_bytes_max) {
    const absl::StatusOr<Mapping> mapping = pool.Take(bytes, spare_bytes_max);
    if (!mapping.ok()) return mapping.status();
    return std::shared_ptr<Memory>(new Memory(pool, *mapping, bytes));
  }
  ~Memory() { pool_.GiveBack(mapping_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() { return mapping_.data; }
  uint64_t bytes() const { return bytes_; }

  // The usage fields are read and written under a lock of their own.
  void WriteUse(uint32_t hit_count, uint64_t last_used_time_s) {
    const std::string hits = slab::EncodeHitCount(hit_count);
    const std::string used = slab::EncodeLastUsed(last_used_time_s);
    MutexLock lock(&use_mutex_);
    std::memcpy(mapping_.data + slab::kHitCountOffset, hits.data(), hits.size());
    std::memcpy(mapping_.data + slab::kLastUsedOffset, used.data(), used.size());
  }
  void Read(uint64_t offset, absl::Span<char> out) {
    if (offset >= slab::kHeaderBytes) {
      std::memcpy(out.data(), mapping_.data + offset, out.size());
      return;
    }
    MutexLock lock(&use_mutex_);
    std::memcpy(out.data(), mapping_.data + offset, out.size());
  }

 private:
  Memory(MappingPool& pool, const Mapping& mapping, uint64_t bytes)
      : pool_(pool), mapping_(mapping), bytes_(bytes) {}

  MappingPool& pool_;
  const Mapping mapping_;
  const uint64_t bytes_;
  Mutex use_mutex_;
};

class RamTier::Write final : public SlabWrite {
 public:
  Write(RamTier& tier, const SlabName& name, std::shared_ptr<Memory> memory)
      : tier_(tier), name_(name), memory_(std::move(memory)) {}

  absl::Status Append(absl::Span<const absl::string_view> parts) override {
    for (absl::string_view part : parts) {
      if (part.size() > memory_->bytes() - written_) {
        return absl::OutOfRangeError("more bytes than were announced");
      }
      std::memcpy(memory_->data() + written_, part.data(), part.size());
      written_ += part.size();
    }
    return absl::OkStatus();
  }
  absl::Status Publish() override {
    MutexLock lock(&tier_.mutex_);
    if (tier_.slabs_.emplace(name_, memory_).second) return absl::OkStatus();
    return absl::AlreadyExistsError("the slab is here");
  }

 private:
  RamTier& tier_;
  const SlabName name_;
  std::shared_ptr<Memory> memory_;  // shared with the tier once it is published
  uint64_t written_ = 0;
};

class RamTier::Source final : public slab::ByteSource {
 public:
  explicit Source(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  uint64_t size() const override { return memory_->bytes(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
    if (offset > size() || out.size() > size() - offset) {
      return absl::OutOfRangeError("behind the slab's end");
    }
    memory_->Read(offset, out);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<Memory> memory_;  // the slab may be removed meanwhile
};

absl::StatusOr<std::unique_ptr<SlabWrite>> RamTier::Create(const SlabName& name,
                                                           uint64_t file_bytes,
                                                           uint64_t spare_bytes_max) {
  auto memory = Memory::Make(pool_, file_bytes, spare_bytes_max);
  if (!memory.ok()) return memory.status();
  return std::make_unique<Write>(*this, name, *std::move(memory));
}

absl::StatusOr<std::unique_ptr<slab::ByteSource>> RamTier::Open(const SlabName& name) {
  MutexLock lock(&mutex_);
  const auto found = slabs_.find(name);
  if (found == slabs_.end()) return absl::NotFoundError("no such slab");
  return std::make_unique<Source>(found->second);
}

absl::Status RamTier::Remove(const SlabName& name) {
  std::shared_ptr<Memory> removed;  // unmapped outside the lock
  MutexLock lock(&mutex_);
  const auto found = slabs_.find(name);
  if (found == slabs_.end()) return absl::OkStatus();
  removed = std::move(found->second);
  slabs_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RamTier::Quarantine(const SlabName& name) {
  const absl::Status removed = Remove(name);
  if (!removed.ok()) return removed;
  return 0;
}

absl::Status RamTier::WriteUse(const SlabName& name, uint32_t hit_count,
                               uint64_t last_used_time_s) {
  MutexLock lock(&mutex_);
  const auto found = slabs_.find(name);
  if (found == slabs_.end()) return absl::NotFoundError("no such slab");
  found->second->WriteUse(hit_count, last_used_time_s);
  return absl::OkStatus();
}

}  // namespace kvmesh::blob

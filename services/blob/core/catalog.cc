#include "services/blob/core/catalog.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"

namespace kvmesh::blob {
namespace {

constexpr absl::Duration kBusyRetry = absl::Milliseconds(200);

absl::Status Busy(const char* reason, absl::string_view message) {
  return WithRetryDelay(WithErrorInfo(absl::AbortedError(message), ErrorInfo{.reason = reason}),
                        kBusyRetry);
}

absl::Status NoRoom(uint64_t charged, const Usage& usage) {
  const bool never = charged > usage.budget_bytes;
  return WithErrorInfo(
      absl::ResourceExhaustedError(
          absl::StrCat("the slab takes ", charged, " bytes; ", usage.used_bytes, " used, ",
                       usage.in_flight_bytes, " in flight and ", usage.quarantined_bytes,
                       " quarantined of a budget of ", usage.budget_bytes)),
      ErrorInfo{.reason = std::string(never ? reason::kTooLarge : reason::kNoRoom)});
}

}  // namespace

SlabInfo InfoOf(const slab::SlabMeta& meta) {
  return {.name = NameOf(meta),
          .file_bytes = meta.file_bytes(),
          .token_count = meta.header.token_count,
          .hit_count = meta.header.hit_count,
          .text_bytes = meta.text.size(),
          .creation_time_s = meta.header.creation_time_s,
          .last_used_time_s = meta.header.last_used_time_s,
          .payload_crc32c = meta.payload_crc32c(),
          .block_hash = meta.block_hash,
          .tail_hash = slab::TailHash(meta.text),
          .reason = meta.header.reason,
          .tokens_sha256 = meta.tokens_sha256,
          .key_namespace = meta.key_namespace,
          .cut_points = meta.cut_points};
}

absl::Status Catalog::BeginPut(const SlabName& name, uint64_t file_bytes) {
  if (const auto found = entries_.find(name); found != entries_.end()) {
    switch (found->second.state) {
      case State::kPresent:
        return absl::AlreadyExistsError("the slab is here");
      case State::kWriting:
        return Busy("BEING_WRITTEN", "another put of this name is open");
      case State::kRemoving:
      case State::kRemoved:
        return Busy("DELETING", "the slab of this name is being deleted");
    }
  }
  const uint64_t charged = ChargedBytes(file_bytes);
  const uint64_t occupied = usage_.occupied();
  if (occupied > usage_.budget_bytes || charged > usage_.budget_bytes - occupied) {
    return NoRoom(charged, usage_);
  }
  entries_[name] = Entry{.state = State::kWriting, .charged_bytes = charged};
  usage_.in_flight_bytes += charged;
  return absl::OkStatus();
}

void Catalog::AbortPut(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state != State::kWriting) return;
  usage_.in_flight_bytes -= found->second.charged_bytes;
  entries_.erase(found);
}

void Catalog::CommitPut(const SlabInfo& info) {
  AbortPut(info.name);
  AddFound(info);
}

void Catalog::AddFound(const SlabInfo& info) {
  const uint64_t charged = ChargedBytes(info.file_bytes);
  entries_[info.name] = Entry{.state = State::kPresent, .charged_bytes = charged, .info = info};
  usage_.used_bytes += charged;
  ++usage_.slabs;
}

absl::StatusOr<SlabInfo> Catalog::BeginRead(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state != State::kPresent) {
    return absl::NotFoundError("no such slab");
  }
  ++found->second.readers;
  return found->second.info;
}

bool Catalog::EndRead(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.readers == 0) return false;
  --found->second.readers;
  if (found->second.state != State::kRemoved || found->second.readers > 0) return false;
  Forget(found);
  return true;
}

Catalog::Removal Catalog::BeginRemoval(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state == State::kWriting) return Removal::kAbsent;
  if (found->second.state != State::kPresent) return Removal::kInProgress;
  found->second.state = State::kRemoving;
  return Removal::kStarted;
}

void Catalog::CancelRemoval(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found != entries_.end() && found->second.state == State::kRemoving) {
    found->second.state = State::kPresent;
  }
}

bool Catalog::EndRemoval(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return true;
  found->second.state = State::kRemoved;
  if (found->second.readers > 0) return false;
  Forget(found);
  return true;
}

void Catalog::Forget(std::map<SlabName, Entry>::iterator entry) {
  usage_.used_bytes -= entry->second.charged_bytes;
  --usage_.slabs;
  entries_.erase(entry);
}

absl::StatusOr<SlabInfo> Catalog::Find(const SlabName& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state != State::kPresent) {
    return absl::NotFoundError("no such slab");
  }
  return found->second.info;
}

std::vector<SlabInfo> Catalog::List(const std::optional<SlabName>& after, size_t count_max) const {
  std::vector<SlabInfo> infos;
  auto entry = after ? entries_.upper_bound(*after) : entries_.begin();
  for (; entry != entries_.end() && infos.size() < count_max; ++entry) {
    if (entry->second.state == State::kPresent) infos.push_back(entry->second.info);
  }
  return infos;
}

std::vector<SlabName> Catalog::PlanTrim(uint64_t bytes_max, uint64_t now_s) const {
  std::vector<std::tuple<uint64_t, SlabName, uint64_t>> by_use;
  for (const auto& [name, entry] : entries_) {
    if (entry.state != State::kPresent) continue;
    by_use.emplace_back(std::min(entry.info.last_used_time_s, now_s), name, entry.charged_bytes);
  }
  std::sort(by_use.begin(), by_use.end());
  std::vector<SlabName> victims;
  uint64_t left = usage_.occupied();
  for (const auto& [last_used, name, bytes] : by_use) {
    if (left <= bytes_max) break;
    victims.push_back(name);
    left -= bytes;
  }
  return victims;
}

void Catalog::SetUse(const SlabName& name, uint32_t hit_count, uint64_t last_used_time_s) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return;
  found->second.info.hit_count = hit_count;
  found->second.info.last_used_time_s = last_used_time_s;
}

}  // namespace kvmesh::blob

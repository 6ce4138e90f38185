#include "services/blob/core/catalog.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/slab/cut_points.h"

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
          .ends_inside_character = slab::EndsInsideCharacter(meta.text),
          .model_layers = meta.model_layers,
          .tokens_sha256 = meta.tokens_sha256,
          .key_namespace = meta.key_namespace,
          .cut_points = meta.cut_points};
}

absl::Status Catalog::BeginPut(const SlabName& name, uint64_t file_bytes) {
  if (const auto open = writing_.find(name); open != writing_.end()) {
    return open->second.unwanted ? Busy("DELETING", "the put of this name is being given up")
                                 : Busy("BEING_WRITTEN", "another put of this name is open");
  }
  if (const auto found = entries_.find(name); found != entries_.end()) {
    if (found->second.state == State::kPresent) return absl::AlreadyExistsError("the slab is here");
    return Busy("DELETING", "the slab of this name is being deleted");
  }
  const uint64_t charged = ChargedBytes(file_bytes);
  const uint64_t occupied = usage_.occupied();
  if (occupied > usage_.budget_bytes || charged > usage_.budget_bytes - occupied) {
    return NoRoom(charged, usage_);
  }
  writing_[name] = OpenWrite{.charged_bytes = charged};
  usage_.in_flight_bytes += charged;
  return absl::OkStatus();
}

bool Catalog::AbortPut(const SlabName& name) {
  const auto open = writing_.find(name);
  if (open == writing_.end()) return false;
  const bool unwanted = open->second.unwanted;
  usage_.in_flight_bytes -= open->second.charged_bytes;
  writing_.erase(open);
  return unwanted;
}

bool Catalog::CommitPut(const SlabInfo& info) {
  const bool unwanted = AbortPut(info.name);
  AddFound(info);
  if (unwanted) entries_.find(info.name)->second.state = State::kRemoving;
  return unwanted;
}

bool Catalog::PutIsUnwanted(const SlabName& name) const {
  const auto open = writing_.find(name);
  return open != writing_.end() && open->second.unwanted;
}

std::vector<WriteId> Catalog::OpenPuts() const {
  std::vector<WriteId> ids;
  ids.reserve(writing_.size());
  for (const auto& [name, open] : writing_) ids.push_back(name.write_id);
  return ids;
}

void Catalog::AddFound(const SlabInfo& info) {
  entries_[info.name] = EntryOf(info);
  usage_.used_bytes += ChargedBytes(info.file_bytes);
  ++usage_.slabs;
}

Catalog::Entry Catalog::EntryOf(const SlabInfo& info) {
  return {.file_bytes = info.file_bytes,
          .text_bytes = info.text_bytes,
          .creation_time_s = info.creation_time_s,
          .last_used_time_s = info.last_used_time_s,
          .block_hash = info.block_hash,
          .token_count = info.token_count,
          .hit_count = info.hit_count,
          .payload_crc32c = info.payload_crc32c,
          .tail_hash = info.tail_hash,
          .state = State::kPresent,
          .reason = info.reason,
          .ends_inside_character = info.ends_inside_character,
          .model_layers = info.model_layers,
          .tokens_sha256 = info.tokens_sha256,
          .key_namespace = namespaces_.Share(info.key_namespace),
          .cut_points = info.cut_points};
}

SlabInfo Catalog::InfoOf(const Entries::value_type& entry) {
  const auto& [name, kept] = entry;
  return {.name = name,
          .file_bytes = kept.file_bytes,
          .token_count = kept.token_count,
          .hit_count = kept.hit_count,
          .text_bytes = kept.text_bytes,
          .creation_time_s = kept.creation_time_s,
          .last_used_time_s = kept.last_used_time_s,
          .payload_crc32c = kept.payload_crc32c,
          .block_hash = kept.block_hash,
          .tail_hash = kept.tail_hash,
          .reason = kept.reason,
          .ends_inside_character = kept.ends_inside_character,
          .model_layers = kept.model_layers,
          .tokens_sha256 = kept.tokens_sha256,
          .key_namespace = *kept.key_namespace,
          .cut_points = kept.cut_points};
}

absl::Status Catalog::BeginRead(const SlabName& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state != State::kPresent) {
    return absl::NotFoundError("no such slab");
  }
  ++found->second.readers;
  return absl::OkStatus();
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
  if (const auto open = writing_.find(name); open != writing_.end()) {
    open->second.unwanted = true;
    return Removal::kPutOpen;
  }
  const auto found = entries_.find(name);
  if (found == entries_.end()) return Removal::kAbsent;
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

void Catalog::Forget(Entries::iterator entry) {
  usage_.used_bytes -= ChargedBytes(entry->second.file_bytes);
  --usage_.slabs;
  namespaces_.GiveBack(&entry->second.key_namespace);
  entries_.erase(entry);
}

bool Catalog::Holds(const SlabName& name) const {
  return entries_.contains(name) || writing_.contains(name);
}

absl::StatusOr<SlabInfo> Catalog::Find(const SlabName& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.state != State::kPresent) {
    return absl::NotFoundError("no such slab");
  }
  return InfoOf(*found);
}

Listing Catalog::List(const std::optional<SlabName>& after, size_t count_max) const {
  Listing listing;
  size_t cut_points = 0;
  auto entry = after ? entries_.upper_bound(*after) : entries_.begin();
  for (; entry != entries_.end(); ++entry) {
    if (entry->second.state != State::kPresent) continue;
    cut_points += entry->second.cut_points.size();
    const bool full = listing.slabs.size() >= count_max || cut_points > kListedCutPointsMax;
    if (full && !listing.slabs.empty()) return listing;
    listing.slabs.push_back(InfoOf(*entry));
  }
  listing.complete = true;
  return listing;
}

std::vector<SlabName> Catalog::PlanTrim(uint64_t bytes_max, uint64_t now_s) const {
  std::vector<std::tuple<uint64_t, SlabName, uint64_t>> by_use;
  for (const auto& [name, entry] : entries_) {
    if (entry.state != State::kPresent) continue;
    by_use.emplace_back(std::min(entry.last_used_time_s, now_s), name,
                        ChargedBytes(entry.file_bytes));
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
  found->second.hit_count = hit_count;
  found->second.last_used_time_s = last_used_time_s;
}

}  // namespace kvmesh::blob

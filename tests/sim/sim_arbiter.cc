#include "tests/sim/sim_arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "common/slab/reader.h"

namespace kvmesh::sim {
namespace {

constexpr char kStoreAddress[] = "store:1";

}  // namespace

WriteId SimArbiter::NextWrite() {
  WriteId id;
  const uint64_t number = ++writes_;
  std::memcpy(id.mutable_data(), &number, sizeof(number));
  return id;
}

std::vector<std::vector<const SimArbiter::Stored*>> SimArbiter::Rows() const {
  std::map<WriteId, std::vector<const Stored*>> by_write;
  for (const auto& [name, slab] : slabs_) {
    if (!slab.fragment) by_write[slab.ref.write_id].push_back(&slab);
  }
  std::vector<std::vector<const Stored*>> rows;
  for (auto& [write, slabs] : by_write) {
    uint32_t layers = 0;
    for (const Stored* slab : slabs) layers += slab->ref.layers.size();
    if (layers == layer_count_) rows.push_back(std::move(slabs));
  }
  return rows;
}

absl::StatusOr<std::optional<router::FoundRow>> SimArbiter::Lookup(const router::LookupRow& asked) {
  const absl::string_view text = asked.prompt->text.text();
  std::optional<router::FoundRow> best;
  for (const std::vector<const Stored*>& row : Rows()) {
    for (const auto& [tokens, bytes] : row[0]->cuts) {
      const bool wanted = tokens >= asked.token_count_min && bytes <= text.size() &&
                          (asked.text_bytes_max == 0 || bytes <= asked.text_bytes_max) &&
                          (!best.has_value() || bytes > best->cut_text_bytes) &&
                          row[0]->text.compare(0, bytes, text.data(), bytes) == 0;
      if (!wanted) continue;
      best = router::FoundRow{.lease = asked.lease,
                              .cut_tokens = tokens,
                              .cut_text_bytes = bytes,
                              .row_tokens = row[0]->ids.size()};
      for (const Stored* slab : row) best->slabs.push_back({slab->ref, "ram"});
    }
  }
  if (best.has_value()) leases_.insert(asked.lease);
  return best;
}

absl::StatusOr<router::CheckpointRead> SimArbiter::Read(const router::ReadCheckpoint& asked,
                                                        const text::Tokenizer& tokenizer) const {
  const std::string* file = Get(asked.slab);
  if (file == nullptr) return absl::NotFoundError("no such slab");
  const slab::MemorySource source(*file);
  const absl::StatusOr<slab::Envelope> envelope = slab::ReadEnvelope(source);
  if (!envelope.ok()) return envelope.status();
  const auto stored = absl::MakeConstSpan(envelope->meta.token_ids).first(asked.cut_tokens);
  absl::StatusOr<router::Seam> seam =
      router::JoinSeam(tokenizer, *asked.prompt, stored, asked.cut_text_bytes);
  if (!seam.ok()) return seam.status();
  return router::CheckpointRead{.seam = *std::move(seam),
                                .has_output_row = envelope->meta.last_output.has_value()};
}

absl::StatusOr<router::FoundFragment> SimArbiter::Fragment(const router::AwaitFragment& asked) {
  for (size_t i = 0; i < asked.positions.size(); ++i) {
    for (const auto& [name, slab] : slabs_) {
      if (!slab.fragment || slab.ref.layers != asked.layers ||
          slab.ref.key != asked.positions[i].key ||
          slab.ref.tokens_sha256 != asked.positions[i].tokens_sha256) {
        continue;
      }
      leases_.insert(asked.lease);
      return router::FoundFragment{.position = i, .slab = {slab.ref, "ram"}};
    }
  }
  return absl::NotFoundError("no such fragment");
}

absl::StatusOr<router::Reservation> SimArbiter::Reserve(const router::ReserveRow& asked) {
  for (const std::vector<const Stored*>& row : Rows()) {
    if (row[0]->ref.key == asked.key) return absl::AlreadyExistsError("the key has a row");
  }
  for (const auto& [write, reserved] : reserved_) {
    if (reserved.key == asked.key) return absl::AbortedError("BEING_WRITTEN");
  }
  router::Reservation reservation{.write_id = NextWrite()};
  Reserved reserved{.request = asked.request, .key = asked.key};
  for (const auto& [layers, bytes] : asked.ranges) {
    reserved.ranges.push_back(layers);
    reservation.stores.emplace_back(layers, kStoreAddress);
  }
  reserved_[reservation.write_id] = std::move(reserved);
  return reservation;
}

void SimArbiter::Cancel(const router::CancelReservation& asked) {
  for (auto it = reserved_.begin(); it != reserved_.end(); ++it) {
    if (it->second.request != asked.request) continue;
    const WriteId write = it->first;
    reserved_.erase(it);
    for (auto slab = slabs_.begin(); slab != slabs_.end();) {
      slab = slab->second.ref.write_id == write ? slabs_.erase(slab) : std::next(slab);
    }
    return;
  }
}

void SimArbiter::End(const router::EndLease& asked) {
  leases_.erase(asked.lease);
  for (const forward::SlabRef& slab : asked.bad_slabs) slabs_.erase(router::SlabName(slab));
}

WriteId SimArbiter::ReserveFragment() {
  return NextWrite();
}

void SimArbiter::Put(const std::string& file, bool fragment) {
  const slab::MemorySource source(file);
  const absl::StatusOr<slab::Envelope> envelope = slab::ReadEnvelope(source);
  if (!envelope.ok()) {
    ADD_FAILURE() << "a shard stored what is no slab: " << envelope.status();
    return;
  }
  const slab::SlabMeta& meta = envelope->meta;
  Stored stored{.ref = {.store_address = kStoreAddress,
                        .key = meta.key,
                        .layers = meta.header.layers,
                        .write_id = meta.write_id,
                        .tokens_sha256 = meta.tokens_sha256},
                .file = file,
                .ids = meta.token_ids,
                .text = meta.text,
                .fragment = fragment};
  for (const slab::CutPoint& cut : meta.cut_points) {
    stored.cuts.emplace_back(cut.token_count, cut.text_bytes);
  }
  stored.cuts.emplace_back(meta.header.token_count, meta.text.size());
  const std::string name = router::SlabName(stored.ref);
  if (fragment) {
    slabs_[name] = std::move(stored);
    return;
  }
  const auto reserved = reserved_.find(meta.write_id);
  if (reserved == reserved_.end()) return;  // cancelled meanwhile
  if (reserved->second.key != meta.key) {
    ADD_FAILURE() << "a slab of another text than was reserved";
    return;
  }
  std::vector<LayerRange>& ranges = reserved->second.ranges;
  ranges.erase(std::remove(ranges.begin(), ranges.end(), stored.ref.layers), ranges.end());
  slabs_[name] = std::move(stored);
  if (ranges.empty()) reserved_.erase(reserved);
}

const std::string* SimArbiter::Get(const forward::SlabRef& slab) const {
  const auto found = slabs_.find(router::SlabName(slab));
  return found == slabs_.end() ? nullptr : &found->second.file;
}

void SimArbiter::LoseOne() {
  if (slabs_.empty()) return;
  const auto victim = std::next(slabs_.begin(), static_cast<ptrdiff_t>(random_() % slabs_.size()));
  const WriteId write = victim->second.ref.write_id;
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    slab = slab->second.ref.write_id == write ? slabs_.erase(slab) : std::next(slab);
  }
}

void SimArbiter::FlipAByte() {
  if (slabs_.empty()) return;
  std::string& file =
      std::next(slabs_.begin(), static_cast<ptrdiff_t>(random_() % slabs_.size()))->second.file;
  file[random_() % file.size()] ^= 1;
}

}  // namespace kvmesh::sim

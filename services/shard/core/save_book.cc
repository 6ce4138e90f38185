#include "services/shard/core/save_book.h"

#include <algorithm>

namespace kvmesh::shard {

bool SaveBook::Fits(uint64_t bytes) const {
  return flights_.size() < options_.saves_max && bytes <= options_.save_inflight_bytes_max &&
         bytes_ <= options_.save_inflight_bytes_max - bytes;
}

SaveId SaveBook::Add(const Flight& flight) {
  const SaveId id{next_++};
  flights_[id] = flight;
  bytes_ += flight.bytes;
  return id;
}

SaveBook::Flight* SaveBook::Find(SaveId id) {
  auto it = flights_.find(id);
  return it == flights_.end() ? nullptr : &it->second;
}

std::optional<SaveBook::Flight> SaveBook::End(SaveId id, std::optional<SaveDrop> drop) {
  auto it = flights_.find(id);
  if (it == flights_.end()) return std::nullopt;
  const Flight flight = it->second;
  flights_.erase(it);
  bytes_ -= flight.bytes;
  if (drop.has_value()) {
    CountDrop(flight.reason, *drop);
  } else {
    const auto reason = static_cast<size_t>(flight.reason);
    ++counters_.done[reason];
    counters_.done_bytes[reason] += flight.bytes;
  }
  return flight;
}

void SaveBook::CountDrop(forward::SaveReason reason, SaveDrop drop) {
  ++counters_.dropped[static_cast<size_t>(drop)][static_cast<size_t>(reason)];
}

size_t SaveBook::size(StreamId stream) const {
  return static_cast<size_t>(
      std::count_if(flights_.begin(), flights_.end(),
                    [stream](const auto& pair) { return pair.second.stream == stream; }));
}

}  // namespace kvmesh::shard

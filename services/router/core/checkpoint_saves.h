// The saves of one generation on their way from a reservation to the hops' word that they write
// (DESIGN §5.5).
//
// Pure; not thread-safe. Reserve asks the arbiter; once it has answered, TakeReady gives the Save
// when its place in the stream has come. Every save ends with exactly one SaveEnded effect, and a
// reservation that no hop will use is cancelled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/router/core/checkpoint.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

struct SaveOrder {
  forward::SaveReason reason = forward::SaveReason::kCold;
  uint64_t at_tokens = 0;
  bool exact = false;  // of use only while the hops hold exactly so many
  Sha256Digest key;
  uint64_t text_bytes = 0;
};

class CheckpointSaves {
 public:
  // All must outlive it.
  CheckpointSaves(const CheckpointOptions& options, HoldIds& ids, Effects& effects)
      : options_(options), ids_(ids), effects_(effects) {}

  // Nothing when a save of that key is under way or was made.
  void Reserve(const SaveOrder& order, const RoutePlan& route, const std::string& tier);
  void Skip(forward::SaveReason reason, const std::string& why);
  void OnReserved(MetaCall call, const absl::StatusOr<Reservation>& reserved);

  // The Save frames to send now: the frames sent to `hops` so far make them hold `sent_tokens`.
  std::vector<forward::Save> TakeReady(absl::Span<const forward::HopRef> hops,
                                       uint64_t sent_tokens);
  // The shortest length beyond `sent_tokens` at which an exact save wants a prefill chunk to end.
  std::optional<uint64_t> NextEdge(uint64_t sent_tokens) const;
  void OnSaveState(const forward::SaveState& state);
  // The hops' word on what was sent will not come; what was not sent waits for the next stream.
  void OnStreamEnd();
  // No further frame will be sent.
  void CancelUnsent();

  // Some reservation is not answered yet.
  bool reserving() const;
  // Reservations to keep alive.
  std::vector<WriteId> Held() const;

 private:
  enum class State { kReserving, kReserved, kSent, kAbandoned };
  struct Write {
    SaveOrder order;
    MetaCall call{0};
    RequestId request;
    std::vector<LayerRange> ranges;
    State state = State::kReserving;
    WriteId write_id;
    std::vector<std::string> stores;  // addresses, by range
    std::vector<bool> answered;       // by hop
  };

  void End(const Write& write, const std::string& result);
  // Ends one whose reservation, if it comes or came about, is of no use.
  void Drop(Write& write, const std::string& result);
  void RemoveEnded();

  const CheckpointOptions& options_;
  HoldIds& ids_;
  Effects& effects_;
  std::vector<Write> writes_;          // those under way, few
  std::vector<Sha256Digest> ordered_;  // keys of all so far
};

}  // namespace kvmesh::router

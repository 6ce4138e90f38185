// Finds stored state for a sequence: waits for a parent's save, looks up the longest row, reads its
// ids and joins the seam; a row that does not do makes way for the next shorter one, twice (DESIGN
// §5.3, §5.6).
//
// Pure; not thread-safe. Begin, then inputs until running() is false; then either choice() or
// cold_cause() says how to go on. After a choice: Taken when the hops have read it, or Failed when
// they could not, which looks on.
//
// Invariant: at most one lease is held, and each one ends: by Taken, Failed, Cancel, or for a row
// that does not do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "services/router/core/checkpoint.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

struct RestoreRequest {
  forward::CacheNamespace cache_namespace;
  std::vector<LayerRange> hops;              // of the route, in order
  std::shared_ptr<const PromptText> prompt;  // shared with the calls that read it
  std::optional<Sha256Digest> parent_key;
  bool exact_tokens = false;  // drift is a miss
  uint64_t tokens_max = 0;    // of the effective ids
};

struct RestoreChoice {
  Seam seam;
  uint64_t restore_tokens = 0;  // what the hops load
  bool full_hit = false;        // the tail answers from its stored row; nothing is run
  std::vector<StoredSlab> slabs;
  std::vector<std::vector<forward::SlabRef>> hop_slabs;  // by hop
};

class RestorePlanner {
 public:
  // All must outlive it.
  RestorePlanner(const CheckpointOptions& options, HoldIds& ids, Effects& effects)
      : options_(options), ids_(ids), effects_(effects) {}

  void Begin(RestoreRequest request, MonoTime now);
  void OnParent(MetaCall call, MonoTime now);
  void OnLookup(MetaCall call, absl::StatusOr<std::optional<FoundRow>> found, MonoTime now);
  void OnCheckpoint(MetaCall call, absl::StatusOr<CheckpointRead> read, MonoTime now);
  void Tick(MonoTime now);
  MonoTime NextTimer() const { return running() ? give_up_at_ : absl::InfiniteDuration(); }

  bool running() const { return state_ != State::kIdle; }
  const std::optional<RestoreChoice>& choice() const { return choice_; }
  // Why there is no choice: "no_row", "too_short", "restore_failed:…", "disabled:…".
  const std::string& cold_cause() const { return cause_; }
  // Of the choice, until Taken or Failed.
  std::optional<LeaseId> lease() const;

  // The hops hold the state.
  void Taken();
  // They do not: `why` for cold_cause(), `bad_slab` by name or empty. Looks for the next row if
  // there may be one.
  void Failed(const std::string& why, const std::string& bad_slab, MonoTime now);
  void Cancel();

 private:
  enum class State { kIdle, kParent, kLookup, kRead };

  void Lookup(MonoTime now);
  void NextRow(const std::string& why, MonoTime now);
  void EndRow(std::vector<forward::SlabRef> bad_slabs);
  // Empty: the row serves, as choice_.
  std::string Choose(CheckpointRead read);
  void GoCold(std::string cause);
  MetaCall NextCall() { return call_ = ids_.NextCall(); }

  const CheckpointOptions& options_;
  HoldIds& ids_;
  Effects& effects_;

  State state_ = State::kIdle;
  RestoreRequest request_;
  MetaCall call_{0};
  MonoTime give_up_at_;
  uint32_t rows_left_ = 0;
  uint64_t text_bytes_max_ = 0;
  LeaseId asked_lease_;  // of the look-up under way
  std::optional<FoundRow> row_;
  const StoredSlab* read_slab_ = nullptr;  // in row_
  std::optional<RestoreChoice> choice_;
  std::string cause_;
};

}  // namespace kvmesh::router

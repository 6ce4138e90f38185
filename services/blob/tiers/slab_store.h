// One blob tier: slabs on a medium, an index of them in memory, a budget. It obeys and refuses;
// what to give up when room is short is the arbiter's to say.
//
// Thread-safe; calls block on the medium and are made from executors. Order: Open, then everything
// else; every OpenPut and OpenGet ends before the store does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/slab/reader.h"
#include "common/slab/stream_verifier.h"
#include "services/blob/core/catalog.h"
#include "services/blob/core/transfer_gate.h"
#include "services/blob/core/transfer_plan.h"
#include "services/blob/tiers/tier.h"

namespace kvmesh::blob {

struct StoreOptions {
  uint64_t budget_bytes = 0;
  double low_watermark = 0.80;  // of the budget; start-up trims to it
  uint32_t transfers_max = 32;  // puts and gets at once
  uint32_t scan_threads = 2;
  uint64_t now_s = 0;  // since the epoch, at the start
};

// What a put announces before its first byte.
struct PutHeader {
  SlabName name;
  uint64_t file_bytes = 0;
  Sha256Digest tokens_sha256;
  uint32_t payload_crc32c = 0;
};

struct PutResult {
  SlabInfo info;
  bool adopted = false;  // it was here already, sound: an earlier attempt's
};

// Told after the fact, outside every lock, on the thread that did it.
class StoreEvents {
 public:
  virtual ~StoreEvents() = default;
  virtual void OnPut(const PutResult& put) = 0;
  virtual void OnRemoved(const SlabName& name) = 0;
  virtual void OnQuarantined(const SlabName& name, const absl::Status& why) = 0;
};

struct StartupReport {
  uint64_t kept = 0;
  std::map<std::string, uint64_t> removed;      // temporary, trimmed
  std::map<std::string, uint64_t> quarantined;  // by defect
  std::map<std::string, uint64_t> left_alone;
};

class SlabStore;

// A put whose room is reserved. Not thread-safe. Destroyed before Finish: nothing of it stays.
class OpenPut {
 public:
  ~OpenPut();
  // InvalidArgument: not a sound slab, or not the one announced. Aborted DELETING: it was deleted
  // meanwhile. Else the medium's error.
  absl::Status Append(absl::Span<const absl::string_view> parts);
  // All bytes have come: publishes. Errors as of Append; AlreadyExists: the name is taken by
  // another slab.
  absl::StatusOr<PutResult> Finish();
  // Aborted DELETING: the slab was deleted before it was done, and somebody waits for it to end.
  absl::Status CheckWanted() const;

 private:
  friend class SlabStore;
  OpenPut(SlabStore& store, const PutHeader& header, std::unique_ptr<SlabWrite> write);
  absl::Status CheckAnnounced() const;
  absl::StatusOr<PutResult> Publish();

  SlabStore& store_;
  const PutHeader header_;
  slab::SlabStreamVerifier verifier_;
  std::unique_ptr<SlabWrite> write_;
  bool checked_ = false;
  bool committed_ = false;
};

// A read that holds its slab. Not thread-safe.
class OpenGet {
 public:
  ~OpenGet();
  const slab::SlabMeta& meta() const { return envelope_.meta; }
  // What the chunks cover, in order.
  const std::vector<ByteRange>& ranges() const { return plan_.ranges; }
  // 0: the end.
  uint64_t next_bytes() const;
  // Reads and verifies the next chunk; `out` has next_bytes(). DataLoss: a bad piece; the slab is
  // quarantined now. Unavailable: the medium failed this read.
  absl::Status ReadNext(absl::Span<char> out);

 private:
  friend class SlabStore;
  OpenGet(SlabStore& store, const SlabName& name) : store_(store), name_(name) {}
  absl::Status Load(const Selection& selection);
  absl::Status ReadChunk(const Chunk& chunk, absl::Span<char> out) const;

  SlabStore& store_;
  const SlabName name_;
  std::unique_ptr<slab::ByteSource> source_;
  slab::Envelope envelope_;
  TransferPlan plan_;
  size_t next_ = 0;
};

class SlabStore {
 public:
  // Recovers the tier, verifies every slab it holds (all but payloads), quarantines what is bad and
  // trims to the low watermark. `events` must outlive the store.
  static absl::StatusOr<std::unique_ptr<SlabStore>> Open(const StoreOptions& options,
                                                         std::unique_ptr<Tier> tier,
                                                         StoreEvents& events);

  const StartupReport& startup_report() const { return startup_report_; }

  struct BegunPut {
    std::unique_ptr<OpenPut> put;      // unset: nothing is to be sent
    std::optional<PutResult> adopted;  // set instead
  };
  // InvalidArgument: an impossible size. AlreadyExists: another slab has this name. Aborted
  // BEING_WRITTEN, DELETING; ResourceExhausted NO_ROOM, TOO_LARGE, QUEUE_FULL, MEDIUM_FULL: as
  // their makers say. Nothing has been written then.
  absl::StatusOr<BegunPut> BeginPut(const PutHeader& header);

  // NotFound; DataLoss: it is bad, and quarantined now; InvalidArgument, FailedPrecondition: as of
  // PlanTransfer; ResourceExhausted QUEUE_FULL, TOO_MANY_FILES; Unavailable: the medium.
  absl::StatusOr<std::unique_ptr<OpenGet>> BeginGet(const SlabName& name,
                                                    const Selection& selection);

  // Removes the slab at once and says so when its last reader has ended: whether there was one. On
  // this thread or on that reader's. A put of this name that is open is given up, and waited for. A
  // slab of another write_id is another slab.
  using RemovedCallback = std::function<void(const absl::StatusOr<bool>& removed)>;
  void Delete(const SlabName& name, RemovedCallback done);

  absl::StatusOr<SlabInfo> Stat(const SlabName& name) const;
  // Whether the name takes room here: also while its slab is written, removed or still read.
  bool Holds(const SlabName& name) const;
  Listing List(const std::optional<SlabName>& after, size_t count_max) const;
  Usage usage() const;
  std::vector<WriteId> OpenPuts() const;
  uint32_t transfers() const;

  // Reads all of a slab. `before_read` is called before each piece, with its size, and may wait or
  // give up. DataLoss: it is bad, and quarantined now. NotFound, Unavailable, what before_read
  // says.
  absl::Status Verify(const SlabName& name,
                      absl::FunctionRef<absl::Status(uint64_t bytes)> before_read);

  // The first bytes of its text. NotFound; DataLoss: it is bad, and quarantined now; Unavailable.
  absl::StatusOr<std::string> ReadText(const SlabName& name, uint64_t bytes_max);

  // Rewrites how often and when the slab was used. NotFound, Unavailable.
  absl::Status RecordUse(const SlabName& name, uint32_t hit_count, uint64_t last_used_time_s);

 private:
  friend class OpenPut;
  friend class OpenGet;

  SlabStore(const StoreOptions& options, std::unique_ptr<Tier> tier, StoreEvents& events);
  absl::Status Recover();
  void ScanNames(const std::vector<SlabName>& names);
  absl::Status ScanOne(const SlabName& name);
  absl::Status Trim();
  absl::StatusOr<BegunPut> Adopt(const PutHeader& header);
  absl::StatusOr<PutResult> AdoptFile(const PutHeader& header);
  absl::StatusOr<slab::Envelope> ReadNamedEnvelope(const SlabName& name) const;
  void RemoveStarted(const SlabName& name);
  void Quarantine(const SlabName& name, const absl::Status& why);
  void EndRead(const SlabName& name);
  void EndTransfer();
  void Removed(const SlabName& name, const absl::StatusOr<bool>& result);

  const StoreOptions options_;
  std::unique_ptr<Tier> tier_;
  StoreEvents& events_;
  StartupReport startup_report_;

  mutable Mutex mutex_;
  Catalog catalog_ ABSL_GUARDED_BY(mutex_);
  TransferGate gate_ ABSL_GUARDED_BY(mutex_);
  std::map<SlabName, std::vector<RemovedCallback>> waiters_ ABSL_GUARDED_BY(mutex_);
};

// DataLoss SLAB_CORRUPT: the slab's bytes give it another name than `name`.
absl::Status CheckName(const slab::SlabMeta& meta, const SlabName& name);

}  // namespace kvmesh::blob

#include "services/blob/tiers/slab_store.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"

namespace kvmesh::blob {
namespace {

constexpr uint64_t kFileBytesMin = slab::kHeadBytes + slab::kTrailerBytes;

absl::Status CheckSize(uint64_t file_bytes) {
  if (file_bytes >= kFileBytesMin && file_bytes <= slab::kPayloadBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("size is ", file_bytes, "; a slab has ",
                                                 kFileBytesMin, " to ", slab::kPayloadBytesMax));
}

bool SameSlab(const PutHeader& header, const SlabInfo& info) {
  return header.file_bytes == info.file_bytes && header.tokens_sha256 == info.tokens_sha256 &&
         header.payload_crc32c == info.payload_crc32c;
}

absl::Status TakenName() {
  return absl::AlreadyExistsError(
      "another slab has this name: size, tokens_sha256 or payload_crc32c differ");
}

}  // namespace

absl::Status CheckName(const slab::SlabMeta& meta, const SlabName& name) {
  if (NameOf(meta) == name) return absl::OkStatus();
  return slab::Defect(slab::defect::kCorrupt,
                      absl::StrCat("the slab's own name is ", NameOf(meta).ToFileName()));
}

SlabStore::SlabStore(const StoreOptions& options, std::unique_ptr<Tier> tier, StoreEvents& events)
    : options_(options),
      tier_(std::move(tier)),
      events_(events),
      catalog_(options.budget_bytes),
      gate_(options.transfers_max) {}

// ---- start

absl::StatusOr<std::unique_ptr<SlabStore>> SlabStore::Open(const StoreOptions& options,
                                                           std::unique_ptr<Tier> tier,
                                                           StoreEvents& events) {
  std::unique_ptr<SlabStore> store(new SlabStore(options, std::move(tier), events));
  KVMESH_RETURN_IF_ERROR(store->Recover());
  return store;
}

absl::Status SlabStore::Recover() {
  KVMESH_ASSIGN_OR_RETURN(const Recovered recovered, tier_->Recover());
  startup_report_.removed = recovered.removed;
  startup_report_.left_alone = recovered.left_alone;
  {
    MutexLock lock(&mutex_);
    catalog_.SetQuarantined(tier_->quarantined_bytes());
  }
  ScanNames(recovered.names);
  KVMESH_RETURN_IF_ERROR(Trim());
  startup_report_.kept = usage().slabs;
  return absl::OkStatus();
}

void SlabStore::ScanNames(const std::vector<SlabName>& names) {
  std::atomic<size_t> next{0};
  const auto scan = [&] {
    for (size_t i = next++; i < names.size(); i = next++) {
      const absl::Status scanned = ScanOne(names[i]);
      if (scanned.ok()) continue;
      std::string cause = ReasonOf(scanned);
      if (cause.empty()) cause = "unreadable";
      MutexLock lock(&mutex_);
      ++startup_report_.quarantined[cause];
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < options_.scan_threads; ++i) threads.emplace_back(scan);
  scan();
  for (std::thread& thread : threads) thread.join();
}

absl::Status SlabStore::ScanOne(const SlabName& name) {
  const absl::StatusOr<slab::Envelope> envelope = ReadNamedEnvelope(name);
  if (envelope.ok()) {
    MutexLock lock(&mutex_);
    catalog_.AddFound(InfoOf(envelope->meta));
    return absl::OkStatus();
  }
  // Moved aside, also when it cannot even be read: it must not be offered, nor block its name.
  const absl::StatusOr<uint64_t> bytes = tier_->Quarantine(name);
  if (bytes.ok()) {
    MutexLock lock(&mutex_);
    catalog_.SetQuarantined(*bytes);
  }
  events_.OnQuarantined(name, envelope.status());
  return envelope.status();
}

absl::Status SlabStore::Trim() {
  const auto low =
      static_cast<uint64_t>(static_cast<double>(options_.budget_bytes) * options_.low_watermark);
  std::vector<SlabName> victims;
  {
    MutexLock lock(&mutex_);
    victims = catalog_.PlanTrim(low, options_.now_s);
    for (const SlabName& name : victims) catalog_.BeginRemoval(name);
  }
  for (const SlabName& name : victims) {
    KVMESH_RETURN_IF_ERROR(tier_->Remove(name));
    MutexLock lock(&mutex_);
    catalog_.EndRemoval(name);
    ++startup_report_.removed["trimmed"];
  }
  tier_->DropSpare();  // the trim is for the memory limit
  return absl::OkStatus();
}

// ---- puts

absl::StatusOr<SlabStore::BegunPut> SlabStore::BeginPut(const PutHeader& header) {
  KVMESH_RETURN_IF_ERROR(CheckSize(header.file_bytes));
  absl::Status begun;
  uint64_t spare_bytes_max = 0;  // of the budget, so much is not used
  {
    MutexLock lock(&mutex_);
    begun = catalog_.BeginPut(header.name, header.file_bytes);
    if (begun.ok()) {
      spare_bytes_max = options_.budget_bytes - catalog_.usage().occupied();
      begun = gate_.Enter();
      if (!begun.ok()) catalog_.AbortPut(header.name);
    }
  }
  if (absl::IsAlreadyExists(begun)) return Adopt(header);
  KVMESH_RETURN_IF_ERROR(begun);
  absl::StatusOr<std::unique_ptr<SlabWrite>> write =
      tier_->Create(header.name, header.file_bytes, spare_bytes_max);
  if (!write.ok()) {
    bool unwanted = false;
    {
      MutexLock lock(&mutex_);
      unwanted = catalog_.AbortPut(header.name);
      gate_.Leave();
    }
    if (unwanted) Removed(header.name, false);
    return write.status();
  }
  return BegunPut{.put = std::unique_ptr<OpenPut>(new OpenPut(*this, header, *std::move(write)))};
}

absl::StatusOr<SlabStore::BegunPut> SlabStore::Adopt(const PutHeader& header) {
  const absl::StatusOr<SlabInfo> info = Stat(header.name);
  if (info.ok() && !SameSlab(header, *info)) return TakenName();
  const absl::Status sound =
      info.ok() ? Verify(header.name, [](uint64_t) { return absl::OkStatus(); }) : info.status();
  if (sound.ok()) {
    PutResult result{.info = *info, .adopted = true};
    events_.OnPut(result);
    return BegunPut{.adopted = std::move(result)};
  }
  if (absl::IsNotFound(sound)) {
    return WithRetryDelay(
        WithErrorInfo(absl::AbortedError("the slab that was here is being deleted"),
                      ErrorInfo{.reason = "DELETING"}),
        absl::ZeroDuration());
  }
  if (!absl::IsDataLoss(sound)) return sound;
  // The bad one is out of the way now; the sender has a good one.
  return WithRetryDelay(absl::AbortedError("the slab that was here was bad: put it again"),
                        absl::ZeroDuration());
}

absl::StatusOr<PutResult> SlabStore::AdoptFile(const PutHeader& header) {
  KVMESH_ASSIGN_OR_RETURN(const auto source, tier_->Open(header.name));
  KVMESH_ASSIGN_OR_RETURN(const slab::SlabReader reader, slab::SlabReader::Open(*source));
  KVMESH_RETURN_IF_ERROR(CheckName(reader.meta(), header.name));
  KVMESH_RETURN_IF_ERROR(reader.VerifyPayload());
  PutResult result{.info = InfoOf(reader.meta()), .adopted = true};
  if (!SameSlab(header, result.info)) return TakenName();
  return result;
}

// ---- gets

absl::StatusOr<std::unique_ptr<OpenGet>> SlabStore::BeginGet(const SlabName& name,
                                                             const Selection& selection) {
  {
    MutexLock lock(&mutex_);
    KVMESH_RETURN_IF_ERROR(gate_.Enter());
    if (absl::Status begun = catalog_.BeginRead(name); !begun.ok()) {
      gate_.Leave();
      return begun;
    }
  }
  std::unique_ptr<OpenGet> get(new OpenGet(*this, name));
  const absl::Status loaded = get->Load(selection);
  if (loaded.ok()) return get;
  // A file that somebody else removed is a miss, and forgotten.
  if (absl::IsDataLoss(loaded) || absl::IsNotFound(loaded)) Quarantine(name, loaded);
  return loaded;
}

void SlabStore::EndRead(const SlabName& name) {
  bool removed = false;
  {
    MutexLock lock(&mutex_);
    removed = catalog_.EndRead(name);
  }
  if (removed) Removed(name, true);
}

void SlabStore::EndTransfer() {
  MutexLock lock(&mutex_);
  gate_.Leave();
}

absl::Status SlabStore::Verify(const SlabName& name,
                               absl::FunctionRef<absl::Status(uint64_t bytes)> before_read) {
  {
    MutexLock lock(&mutex_);
    KVMESH_RETURN_IF_ERROR(catalog_.BeginRead(name));
  }
  const auto verify = [&]() -> absl::Status {
    KVMESH_ASSIGN_OR_RETURN(const auto source, tier_->Open(name));
    KVMESH_ASSIGN_OR_RETURN(const slab::SlabReader reader, slab::SlabReader::Open(*source));
    KVMESH_RETURN_IF_ERROR(CheckName(reader.meta(), name));
    std::string bytes;
    for (const slab::Piece& piece : slab::AllPieces(reader.meta())) {
      KVMESH_RETURN_IF_ERROR(before_read(piece.length));
      bytes.resize(piece.length);
      KVMESH_RETURN_IF_ERROR(source->ReadAt(piece.offset, absl::MakeSpan(bytes)));
      KVMESH_RETURN_IF_ERROR(slab::CheckPiece(piece, bytes));
    }
    return absl::OkStatus();
  };
  absl::Status verified = verify();
  if (absl::IsDataLoss(verified) || absl::IsNotFound(verified)) Quarantine(name, verified);
  EndRead(name);
  return verified;
}

// ---- removal

void SlabStore::Delete(const SlabName& name, RemovedCallback done) {
  Catalog::Removal removal;
  RemovedCallback call_now;
  {
    MutexLock lock(&mutex_);
    removal = catalog_.BeginRemoval(name);
    // Whoever ends the removal calls everybody who waits for it.
    RemovedCallback& kept =
        removal == Catalog::Removal::kAbsent ? call_now : waiters_[name].emplace_back();
    kept = std::move(done);
  }
  if (removal == Catalog::Removal::kAbsent) return call_now(false);
  if (removal == Catalog::Removal::kStarted) RemoveStarted(name);
}

void SlabStore::RemoveStarted(const SlabName& name) {
  const absl::Status removed = tier_->Remove(name);
  bool forgotten = false;
  {
    MutexLock lock(&mutex_);
    if (removed.ok()) {
      forgotten = catalog_.EndRemoval(name);
    } else {
      catalog_.CancelRemoval(name);
    }
  }
  if (!removed.ok()) {
    Removed(name, removed);
  } else if (forgotten) {
    Removed(name, true);
  }
}

void SlabStore::Removed(const SlabName& name, const absl::StatusOr<bool>& result) {
  std::vector<RemovedCallback> waiting;
  {
    MutexLock lock(&mutex_);
    if (const auto found = waiters_.find(name); found != waiters_.end()) {
      waiting = std::move(found->second);
      waiters_.erase(found);
    }
  }
  if (result.ok() && *result) events_.OnRemoved(name);
  for (const RemovedCallback& done : waiting) done(result);
}

void SlabStore::Quarantine(const SlabName& name, const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (catalog_.BeginRemoval(name) != Catalog::Removal::kStarted) return;
  }
  const absl::StatusOr<uint64_t> bytes = tier_->Quarantine(name);
  const bool gone = bytes.ok() || absl::IsNotFound(bytes.status());
  bool forgotten = false;
  {
    MutexLock lock(&mutex_);
    if (bytes.ok()) catalog_.SetQuarantined(*bytes);
    if (gone) {
      forgotten = catalog_.EndRemoval(name);
    } else {
      catalog_.CancelRemoval(name);
    }
  }
  events_.OnQuarantined(name, why);
  if (forgotten) Removed(name, true);
}

// ---- questions

absl::StatusOr<SlabInfo> SlabStore::Stat(const SlabName& name) const {
  MutexLock lock(&mutex_);
  return catalog_.Find(name);
}

bool SlabStore::Holds(const SlabName& name) const {
  MutexLock lock(&mutex_);
  return catalog_.Holds(name);
}

Listing SlabStore::List(const std::optional<SlabName>& after, size_t count_max) const {
  MutexLock lock(&mutex_);
  return catalog_.List(after, count_max);
}

Usage SlabStore::usage() const {
  MutexLock lock(&mutex_);
  return catalog_.usage();
}

std::vector<WriteId> SlabStore::OpenPuts() const {
  MutexLock lock(&mutex_);
  return catalog_.OpenPuts();
}

uint32_t SlabStore::transfers() const {
  MutexLock lock(&mutex_);
  return gate_.running();
}

absl::StatusOr<std::string> SlabStore::ReadText(const SlabName& name, uint64_t bytes_max) {
  {
    MutexLock lock(&mutex_);
    KVMESH_RETURN_IF_ERROR(catalog_.BeginRead(name));
  }
  const absl::StatusOr<slab::Envelope> envelope = ReadNamedEnvelope(name);
  if (absl::IsDataLoss(envelope.status())) Quarantine(name, envelope.status());
  EndRead(name);
  if (!envelope.ok()) return envelope.status();
  return envelope->meta.text.substr(0, bytes_max);
}

absl::StatusOr<slab::Envelope> SlabStore::ReadNamedEnvelope(const SlabName& name) const {
  KVMESH_ASSIGN_OR_RETURN(const auto source, tier_->Open(name));
  KVMESH_ASSIGN_OR_RETURN(slab::Envelope envelope, slab::ReadEnvelope(*source));
  KVMESH_RETURN_IF_ERROR(CheckName(envelope.meta, name));
  return envelope;
}

absl::Status SlabStore::RecordUse(const SlabName& name, uint32_t hit_count,
                                  uint64_t last_used_time_s) {
  {
    MutexLock lock(&mutex_);
    KVMESH_RETURN_IF_ERROR(catalog_.BeginRead(name));
  }
  absl::Status written = tier_->WriteUse(name, hit_count, last_used_time_s);
  if (written.ok()) {
    MutexLock lock(&mutex_);
    catalog_.SetUse(name, hit_count, last_used_time_s);
  }
  EndRead(name);
  return written;
}

}  // namespace kvmesh::blob

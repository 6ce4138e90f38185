// A put: bytes are verified as they come, written behind one another, and published at the end.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "services/blob/tiers/slab_store.h"

namespace kvmesh::blob {
namespace {

// What a reader calls lost data is, from a sender, a wrong argument.
absl::Status Refused(const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat("not a sound slab: ", status.message()));
}

absl::Status Deleted() {
  return WithErrorInfo(absl::AbortedError("the slab was deleted while it was being put"),
                       ErrorInfo{.reason = "DELETING"});
}

}  // namespace

OpenPut::OpenPut(SlabStore& store, const PutHeader& header, std::unique_ptr<SlabWrite> write)
    : store_(store), header_(header), verifier_(header.file_bytes), write_(std::move(write)) {}

OpenPut::~OpenPut() {
  write_.reset();  // its temporary name first, then the room it took
  bool unwanted = false;
  if (!committed_) {
    MutexLock lock(&store_.mutex_);
    unwanted = store_.catalog_.AbortPut(header_.name);
  }
  store_.EndTransfer();
  if (unwanted) store_.Removed(header_.name, false);
}

absl::Status OpenPut::CheckWanted() const {
  MutexLock lock(&store_.mutex_);
  return store_.catalog_.PutIsUnwanted(header_.name) ? Deleted() : absl::OkStatus();
}

absl::Status OpenPut::Append(absl::Span<const absl::string_view> parts) {
  KVMESH_RETURN_IF_ERROR(CheckWanted());
  for (absl::string_view part : parts) {
    if (absl::Status sound = verifier_.Append(part); !sound.ok()) return Refused(sound);
  }
  if (!checked_ && verifier_.meta() != nullptr) {
    KVMESH_RETURN_IF_ERROR(CheckAnnounced());
    checked_ = true;
  }
  return write_->Append(parts);
}

absl::Status OpenPut::CheckAnnounced() const {
  const slab::SlabMeta& meta = *verifier_.meta();
  if (const absl::Status named = CheckName(meta, header_.name); !named.ok()) return Refused(named);
  if (meta.tokens_sha256 != header_.tokens_sha256) {
    return absl::InvalidArgumentError("tokens_sha256 is not the slab's");
  }
  if (meta.payload_crc32c() != header_.payload_crc32c) {
    return absl::InvalidArgumentError("payload_crc32c is not the slab's");
  }
  return absl::OkStatus();
}

absl::StatusOr<PutResult> OpenPut::Finish() {
  KVMESH_RETURN_IF_ERROR(CheckWanted());
  if (absl::Status sound = verifier_.Finish(); !sound.ok()) return Refused(sound);
  KVMESH_ASSIGN_OR_RETURN(PutResult result, Publish());
  bool deleted = false;
  {
    MutexLock lock(&store_.mutex_);
    deleted = store_.catalog_.CommitPut(result.info);
    committed_ = true;
  }
  if (deleted) {
    store_.RemoveStarted(header_.name);
    return Deleted();
  }
  store_.events_.OnPut(result);
  return result;
}

absl::StatusOr<PutResult> OpenPut::Publish() {
  absl::Status published = write_->Publish();
  if (absl::IsAlreadyExists(published)) {
    // A file that the index does not know: an attempt whose end this process did not see.
    absl::StatusOr<PutResult> adopted = store_.AdoptFile(header_);
    if (!absl::IsDataLoss(adopted.status())) return adopted;
    KVMESH_ASSIGN_OR_RETURN(const uint64_t bytes, store_.tier_->Quarantine(header_.name));
    {
      MutexLock lock(&store_.mutex_);
      store_.catalog_.SetQuarantined(bytes);
    }
    store_.events_.OnQuarantined(header_.name, adopted.status());
    published = write_->Publish();
  }
  KVMESH_RETURN_IF_ERROR(published);
  return PutResult{.info = InfoOf(*verifier_.meta())};
}

}  // namespace kvmesh::blob

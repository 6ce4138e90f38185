#include "services/router/core/restore_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace kvmesh::router {
namespace {

constexpr uint32_t kRowsTried = 3;
constexpr char kNoRow[] = "no_row";

std::string MetaCause(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
      absl::IsCancelled(status)) {
    return "disabled: meta unavailable";
  }
  if (absl::IsResourceExhausted(status)) return "disabled: meta busy";
  return "disabled: meta refused";
}

// Of a slab that could not be used.
std::string ReadCause(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return "bad_slab";
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
      return "seam";
    case absl::StatusCode::kNotFound:
      return "slab_gone";
    default:
      return "store_unavailable";
  }
}

}  // namespace

void RestorePlanner::Begin(RestoreRequest request, MonoTime now) {
  Cancel();
  request_ = std::move(request);
  rows_left_ = kRowsTried;
  text_bytes_max_ = 0;
  cause_ = kNoRow;
  const KeyText& text = request_.prompt->text;
  if (text.tokens() < options_.gates.restore_min_tokens) return GoCold("too_short");
  if (text.text().size() > limits::kTextBytesMax) return GoCold("disabled: text too long");
  if (!request_.parent_key.has_value()) {
    give_up_at_ = now + options_.lookup_wait;
    return Lookup(now);
  }
  state_ = State::kParent;
  give_up_at_ = now + options_.session_resume_wait;
  effects_.emplace_back(AwaitParent{NextCall(), request_.cache_namespace, *request_.parent_key,
                                    options_.session_resume_wait});
}

void RestorePlanner::OnParent(MetaCall call, MonoTime now) {
  if (state_ != State::kParent || call != call_) return;
  give_up_at_ = now + options_.lookup_wait;
  Lookup(now);
}

void RestorePlanner::Lookup(MonoTime now) {
  state_ = State::kLookup;
  asked_lease_ = ids_.NextLease();
  --rows_left_;
  effects_.emplace_back(LookupRow{.call = NextCall(),
                                  .cache_namespace = request_.cache_namespace,
                                  .prompt = request_.prompt,
                                  .lease = asked_lease_,
                                  .token_count_min = options_.gates.restore_min_tokens,
                                  .text_bytes_max = text_bytes_max_,
                                  .timeout = give_up_at_ - now});
}

void RestorePlanner::OnLookup(MetaCall call, absl::StatusOr<std::optional<FoundRow>> found,
                              MonoTime now) {
  if (state_ != State::kLookup || call != call_) {
    // Its asker went on without it, but it pins a row.
    if (found.ok() && found->has_value()) effects_.emplace_back(EndLease{(*found)->lease, {}});
    return;
  }
  if (!found.ok()) return GoCold(MetaCause(found.status()));
  if (!found->has_value()) return GoCold(cause_);
  row_ = *std::move(*found);
  read_slab_ = nullptr;
  for (const StoredSlab& slab : row_->slabs) {
    if (slab.ref.layers.end == options_.layer_count) read_slab_ = &slab;
  }
  if (read_slab_ == nullptr) return NextRow("no_tail_slab", now);
  state_ = State::kRead;
  effects_.emplace_back(ReadCheckpoint{.call = NextCall(),
                                       .cache_namespace = request_.cache_namespace,
                                       .slab = read_slab_->ref,
                                       .cut_tokens = row_->cut_tokens,
                                       .cut_text_bytes = row_->cut_text_bytes,
                                       .prompt = request_.prompt,
                                       .timeout = give_up_at_ - now});
}

void RestorePlanner::OnCheckpoint(MetaCall call, absl::StatusOr<CheckpointRead> read,
                                  MonoTime now) {
  if (state_ != State::kRead || call != call_) return;
  if (!read.ok()) {
    const std::string why = ReadCause(read.status());
    const bool bad = absl::IsDataLoss(read.status()) || absl::IsNotFound(read.status());
    if (bad) EndRow({read_slab_->ref});
    return NextRow(why, now);
  }
  const std::string why = Choose(*std::move(read));
  if (!why.empty()) return NextRow(why, now);
  state_ = State::kIdle;
}

std::string RestorePlanner::Choose(CheckpointRead read) {
  RestoreChoice choice{.seam = std::move(read.seam), .slabs = row_->slabs};
  const uint64_t stored = choice.seam.stored_tokens;
  if (request_.exact_tokens && choice.seam.ids != request_.prompt->ids) return "drift";
  if (choice.seam.ids.size() > request_.tokens_max) return "context";
  const bool covered = choice.seam.ids.size() == stored;
  choice.full_hit = covered && stored == row_->row_tokens && read.has_output_row;
  choice.restore_tokens = covered && !choice.full_hit ? stored - 1 : stored;
  if (choice.restore_tokens < stored && !options_.state_can_be_cut) return "cannot_cut";
  if (choice.restore_tokens < options_.gates.restore_min_tokens) return "too_few_tokens";
  for (const LayerRange& layers : request_.hops) {
    absl::StatusOr<std::vector<forward::SlabRef>> slabs = SlabsFor(layers, row_->slabs);
    if (!slabs.ok()) return "layers_missing";
    choice.hop_slabs.push_back(*std::move(slabs));
  }
  choice_ = std::move(choice);
  return "";
}

void RestorePlanner::EndRow(std::vector<forward::SlabRef> bad_slabs) {
  if (!row_.has_value()) return;
  effects_.emplace_back(EndLease{row_->lease, std::move(bad_slabs)});
  text_bytes_max_ = row_->cut_text_bytes - 1;
  row_.reset();
}

void RestorePlanner::NextRow(const std::string& why, MonoTime now) {
  EndRow({});
  choice_.reset();
  // That of the longest row explains most: the next one may be missing because of it.
  if (cause_ == kNoRow) cause_ = absl::StrCat("restore_failed:", why);
  if (rows_left_ == 0 || text_bytes_max_ == 0) return GoCold(cause_);
  Lookup(now);
}

void RestorePlanner::GoCold(std::string cause) {
  state_ = State::kIdle;
  cause_ = std::move(cause);
  choice_.reset();
}

void RestorePlanner::Tick(MonoTime now) {
  if (!running() || now < give_up_at_) return;
  switch (state_) {
    case State::kParent:
      give_up_at_ = now + options_.lookup_wait;
      return Lookup(now);
    case State::kLookup:
      // The row may be pinned by now.
      effects_.emplace_back(EndLease{asked_lease_, {}});
      return GoCold("disabled: meta unavailable");
    case State::kRead:
      EndRow({});
      return GoCold(cause_ == kNoRow ? "restore_failed:slow" : cause_);
    case State::kIdle:
      return;
  }
}

std::optional<LeaseId> RestorePlanner::lease() const {
  if (!row_.has_value()) return std::nullopt;
  return row_->lease;
}

void RestorePlanner::Taken() {
  EndRow({});
  choice_.reset();
}

void RestorePlanner::Failed(const std::string& why, const std::string& bad_slab, MonoTime now) {
  if (!row_.has_value()) return;
  std::vector<forward::SlabRef> bad;
  for (const StoredSlab& slab : row_->slabs) {
    if (SlabName(slab.ref) == bad_slab) bad.push_back(slab.ref);
  }
  EndRow(std::move(bad));
  give_up_at_ = now + options_.lookup_wait;
  NextRow(why, now);
}

void RestorePlanner::Cancel() {
  if (state_ == State::kLookup) effects_.emplace_back(EndLease{asked_lease_, {}});
  state_ = State::kIdle;
  EndRow({});
  choice_.reset();
}

}  // namespace kvmesh::router

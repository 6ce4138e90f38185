#include "services/meta/grpc/explain.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "services/meta/grpc/meta_codec.h"

namespace kvmesh::meta {
namespace {

constexpr absl::Duration kTextWait = absl::Seconds(2);
// Rows whose texts are asked for, as long as these have not more bytes together.
constexpr size_t kCandidatesMax = 32;
constexpr uint64_t kTextsBytesMax = 64 << 20;
// Other namespaces that the text is looked up in, as long as not more is hashed for that.
constexpr size_t kNamespacesMax = 4096;
constexpr uint64_t kHashedBytesMax = 512 << 20;
constexpr size_t kContextBytes = 24;  // on each side of the first byte that differs

uint64_t CommonBytes(absl::string_view a, absl::string_view b) {
  const size_t length = std::min(a.size(), b.size());
  return static_cast<uint64_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(length), b.begin()).first -
      a.begin());
}

absl::string_view Around(absl::string_view text, uint64_t offset) {
  const uint64_t begin = offset - std::min<uint64_t>(offset, kContextBytes);
  if (begin >= text.size()) return {};
  return text.substr(begin, offset + kContextBytes - begin);
}

// One explanation under way: made on the caller's thread, then of the loop's. Shared by the steps
// that are outstanding.
class Explanation : public std::enable_shared_from_this<Explanation> {
 public:
  Explanation(const ReadIndex& index, slab::KeyNamespace key_namespace, std::string text,
              v1::ExplainLookupResponse* response, std::function<void(const absl::Status&)> done)
      : index_(index),
        key_namespace_(std::move(key_namespace)),
        text_(std::move(text)),
        query_(key_namespace_, text_),
        path_(query_),
        response_(response),
        done_(std::move(done)) {}

  void Start(ArbiterLoop& loop, MonoTime now) {
    if (const auto hit = index_.Lookup(query_)) {
      hit_bytes_ = hit->text_bytes;
      EncodeHit(*hit, index_, response_->mutable_lookup());
    }
    FindNamespace();
    FindGone(now);
    neighbours_ = index_.Nearest(key_namespace_, path_, kCandidatesMax);
    const absl::Status asked =
        loop.Ask([self = shared_from_this()](const ArbiterLoop::View& view) { self->Look(view); });
    if (!asked.ok()) done_(asked);
  }

 private:
  std::vector<const char*> FieldsThatDiffer(const slab::KeyNamespace& other) const {
    std::vector<const char*> fields;
    if (other.model_fp != key_namespace_.model_fp) fields.push_back("model_fp");
    if (other.quant != key_namespace_.quant) fields.push_back("quant");
    if (other.ctx_params != key_namespace_.ctx_params) fields.push_back("ctx_params");
    return fields;
  }

  // Another namespace that would have hit most, and more than this one; of equal ones that in which
  // fewest fields differ.
  void FindNamespace() {
    const uint64_t count_max = kHashedBytesMax / (text_.size() + kBlockBytes);
    uint64_t longest = hit_bytes_;
    std::vector<const char*> fields;
    for (const slab::KeyNamespace& other :
         index_.Namespaces(std::min<uint64_t>(kNamespacesMax, count_max))) {
      std::vector<const char*> differing = FieldsThatDiffer(other);
      if (differing.empty()) continue;
      const auto hit = index_.Lookup(LookupQuery(other, text_));
      if (!hit || hit->text_bytes < longest) continue;
      if (hit->text_bytes == longest && differing.size() >= fields.size()) continue;
      longest = hit->text_bytes;
      fields = std::move(differing);
    }
    for (const char* field : fields) response_->add_namespace_fields_that_differ(field);
  }

  // A row that is no more, of which a cut point was a prefix of the text.
  void FindGone(MonoTime now) {
    const std::optional<GoneRow> longest = index_.gone().Longest(path_, hit_bytes_);
    if (!longest.has_value()) return;
    v1::GoneRow& gone = *response_->mutable_gone();
    gone.set_key(longest->key.ToHex());
    gone.set_token_count(longest->token_count);
    gone.set_text_bytes(longest->text_bytes);
    gone.set_cut_token_count(longest->cut_token_count);
    gone.set_cut_text_bytes(longest->cut_text_bytes);
    gone.set_cause(std::string(ToString(longest->cause)));
    SetMillis(now - longest->at, gone.mutable_age());
  }

  void Look(const ArbiterLoop::View& view) {
    bytes_max_ = neighbours_.left_out_bytes_max;
    FindCandidates(view);
    outstanding_ = candidates_.size();
    if (outstanding_ == 0) return Finish();
    uint64_t bytes = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const PlacedSlab& slab = candidates_[i].row.slabs.front();
      const uint64_t wanted = candidates_[i].common_bytes_max + kContextBytes + 1;
      bytes += wanted;
      if (i > 0 && bytes > kTextsBytesMax) {
        TakeText(i, std::nullopt);
        continue;
      }
      view.stores.RequestText(slab.store, slab.name, wanted, view.now + kTextWait,
                              [self = shared_from_this(), i](std::optional<std::string> text) {
                                self->TakeText(i, std::move(text));
                              });
    }
  }

  void FindCandidates(const ArbiterLoop::View& view) {
    candidates_.reserve(neighbours_.rows.size());
    for (const ReadIndex::Neighbour& neighbour : neighbours_.rows) {
      const auto number = static_cast<uint32_t>(neighbour.row);
      const std::optional<RowId> before =
          number == 0 ? std::nullopt : std::optional(RowId{number - 1});
      std::vector<RowSnapshot> rows = view.arbiter.ListRows(before, 1, {}, view.now);
      // It may have gone meanwhile, and its number to another one.
      if (rows.empty() || rows.front().id != neighbour.row) continue;
      if (rows.front().key != neighbour.row_key || rows.front().slabs.empty()) continue;
      candidates_.push_back({.row = std::move(rows.front()),
                             .common_bytes_min = neighbour.common_bytes_min,
                             .common_bytes_max = neighbour.common_bytes_max});
    }
  }

  void TakeText(size_t candidate, std::optional<std::string> text) {
    if (text) {
      const uint64_t common = CommonBytes(text_, *text);
      if (!nearest_ || common > common_bytes_) {
        nearest_ = candidate;
        common_bytes_ = common;
        row_text_ = std::move(*text);
      }
    } else {
      bytes_max_ = std::max(bytes_max_, candidates_[candidate].common_bytes_max);
    }
    if (--outstanding_ == 0) Finish();
  }

  void Finish() {
    if (nearest_ && common_bytes_ > hit_bytes_) {
      *response_->mutable_nearest() = EncodeRow(candidates_[*nearest_].row);
      response_->set_common_bytes(common_bytes_);
      v1::TextDifference& difference = *response_->mutable_difference();
      difference.set_offset(common_bytes_);
      difference.set_prompt(std::string(Around(text_, common_bytes_)));
      difference.set_row(std::string(Around(row_text_, common_bytes_)));
    } else if (!nearest_ && !candidates_.empty() &&
               candidates_.front().common_bytes_min > hit_bytes_) {
      *response_->mutable_nearest() = EncodeRow(candidates_.front().row);
      response_->set_common_bytes(candidates_.front().common_bytes_min);
    }
    response_->set_common_bytes_max(std::max({bytes_max_, common_bytes_, hit_bytes_}));
    done_(absl::OkStatus());
  }

  const ReadIndex& index_;
  const slab::KeyNamespace key_namespace_;
  const std::string text_;
  const LookupQuery query_;
  PromptPath path_;
  v1::ExplainLookupResponse* const response_;
  const std::function<void(const absl::Status&)> done_;
  uint64_t hit_bytes_ = 0;
  ReadIndex::Neighbours neighbours_;
  struct Candidate {
    RowSnapshot row;
    uint64_t common_bytes_min = 0;
    uint64_t common_bytes_max = 0;
  };
  std::vector<Candidate> candidates_;
  uint64_t bytes_max_ = 0;  // of the rows whose texts are not known
  size_t outstanding_ = 0;
  std::optional<size_t> nearest_;  // of candidates_
  uint64_t common_bytes_ = 0;
  std::string row_text_;
};

}  // namespace

void Explain(ArbiterLoop& loop, const ReadIndex& index, MonoTime now,
             slab::KeyNamespace key_namespace, std::string text,
             v1::ExplainLookupResponse* response, std::function<void(const absl::Status&)> done) {
  std::make_shared<Explanation>(index, std::move(key_namespace), std::move(text), response,
                                std::move(done))
      ->Start(loop, now);
}

}  // namespace kvmesh::meta

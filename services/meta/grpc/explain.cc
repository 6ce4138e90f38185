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
constexpr size_t kCandidatesMax = 4;
// Rows of the namespace that are looked through where none shares a block with the text.
constexpr size_t kListedRowsMax = 1000;
constexpr size_t kNamespacesMax = 64;
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
        response_(response),
        done_(std::move(done)) {}

  void Start(ArbiterLoop& loop) {
    if (const auto hit = index_.Lookup(query_)) {
      hit_bytes_ = hit->text_bytes;
      EncodeHit(*hit, index_, response_->mutable_lookup());
    }
    FindNamespace();
    neighbours_ = index_.Nearest(query_, kCandidatesMax);
    const absl::Status asked =
        loop.Ask([self = shared_from_this()](const ArbiterLoop::View& view) { self->Look(view); });
    if (!asked.ok()) done_(asked);
  }

 private:
  // Another namespace that would have hit more, and how its fields differ.
  void FindNamespace() {
    uint64_t longest = hit_bytes_;
    for (const slab::KeyNamespace& other : index_.Namespaces(kNamespacesMax)) {
      if (other == key_namespace_) continue;
      const auto hit = index_.Lookup(LookupQuery(other, text_));
      if (!hit || hit->text_bytes <= longest) continue;
      longest = hit->text_bytes;
      response_->clear_namespace_fields_that_differ();
      const auto differs = [&](const char* field, bool equal) {
        if (!equal) response_->add_namespace_fields_that_differ(field);
      };
      differs("model_fp", other.model_fp == key_namespace_.model_fp);
      differs("quant", other.quant == key_namespace_.quant);
      differs("ctx_params", other.ctx_params == key_namespace_.ctx_params);
    }
  }

  void Look(const ArbiterLoop::View& view) {
    FindGone(view);
    FindCandidates(view);
    outstanding_ = candidates_.size();
    if (outstanding_ == 0) return Finish();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const PlacedSlab& slab = candidates_[i].slabs.front();
      view.stores.RequestText(slab.store, slab.name, text_.size() + kContextBytes,
                              view.now + kTextWait,
                              [self = shared_from_this(), i](std::optional<std::string> text) {
                                self->TakeText(i, std::move(text));
                              });
    }
  }

  // The longest row that is no more but was a prefix of the text.
  void FindGone(const ArbiterLoop::View& view) {
    for (uint32_t left = query_.blocks() + 1; left > hit_bytes_ / kBlockBytes; --left) {
      const uint32_t blocks = left - 1;
      const GoneRow* longest = nullptr;
      const std::vector<GoneRow> rows = view.arbiter.FindGone(query_.BlockHash(blocks));
      for (const GoneRow& row : rows) {
        const uint32_t tail_bytes = row.text_bytes % kBlockBytes;
        if (row.text_bytes <= hit_bytes_ || row.text_bytes / kBlockBytes != blocks ||
            tail_bytes > query_.TailBytes(blocks) || query_.Key(blocks, tail_bytes) != row.key) {
          continue;
        }
        if (longest == nullptr || row.text_bytes > longest->text_bytes) longest = &row;
      }
      if (longest == nullptr) continue;
      v1::GoneRow& gone = *response_->mutable_gone();
      gone.set_key(longest->key.ToHex());
      gone.set_token_count(longest->token_count);
      gone.set_text_bytes(longest->text_bytes);
      gone.set_cause(std::string(ToString(longest->cause)));
      SetMillis(view.now - longest->at, gone.mutable_age());
      return;
    }
  }

  void FindCandidates(const ArbiterLoop::View& view) {
    candidates_.reserve(kCandidatesMax);
    const auto take = [&](RowSnapshot row) {
      if (row.key_namespace != key_namespace_ || row.slabs.empty()) return;
      if (candidates_.size() < kCandidatesMax) candidates_.push_back(std::move(row));
    };
    for (const RowId id : neighbours_.rows) {
      const auto number = static_cast<uint32_t>(id);
      const std::optional<RowId> before =
          number == 0 ? std::nullopt : std::optional(RowId{number - 1});
      std::vector<RowSnapshot> rows = view.arbiter.ListRows(before, 1, {}, view.now);
      if (!rows.empty() && rows.front().id == id) take(std::move(rows.front()));
    }
    if (!candidates_.empty()) return;
    std::vector<RowSnapshot> rows =
        view.arbiter.ListRows(std::nullopt, kListedRowsMax, {}, view.now);
    std::sort(rows.begin(), rows.end(),
              [](const RowSnapshot& a, const RowSnapshot& b) { return a.idle < b.idle; });
    for (RowSnapshot& row : rows) take(std::move(row));
  }

  void TakeText(size_t candidate, std::optional<std::string> text) {
    if (text) {
      const uint64_t common = CommonBytes(text_, *text);
      if (!nearest_ || common > common_bytes_) {
        nearest_ = candidate;
        common_bytes_ = common;
        row_text_ = std::move(*text);
      }
    }
    if (--outstanding_ == 0) Finish();
  }

  void Finish() {
    const uint64_t blocks_bytes = uint64_t{neighbours_.common_blocks} * kBlockBytes;
    if (nearest_ && common_bytes_ > hit_bytes_) {
      *response_->mutable_nearest() = EncodeRow(candidates_[*nearest_]);
      response_->set_common_bytes(common_bytes_);
      v1::TextDifference& difference = *response_->mutable_difference();
      difference.set_offset(common_bytes_);
      difference.set_prompt(std::string(Around(text_, common_bytes_)));
      difference.set_row(std::string(Around(row_text_, common_bytes_)));
    } else if (!nearest_ && !candidates_.empty() && blocks_bytes > hit_bytes_) {
      *response_->mutable_nearest() = EncodeRow(candidates_.front());
      response_->set_common_bytes(blocks_bytes);
    }
    done_(absl::OkStatus());
  }

  const ReadIndex& index_;
  const slab::KeyNamespace key_namespace_;
  const std::string text_;
  const LookupQuery query_;
  v1::ExplainLookupResponse* const response_;
  const std::function<void(const absl::Status&)> done_;
  uint64_t hit_bytes_ = 0;
  ReadIndex::Neighbours neighbours_;
  std::vector<RowSnapshot> candidates_;
  size_t outstanding_ = 0;
  std::optional<size_t> nearest_;  // of candidates_
  uint64_t common_bytes_ = 0;
  std::string row_text_;
};

}  // namespace

void Explain(ArbiterLoop& loop, const ReadIndex& index, slab::KeyNamespace key_namespace,
             std::string text, v1::ExplainLookupResponse* response,
             std::function<void(const absl::Status&)> done) {
  std::make_shared<Explanation>(index, std::move(key_namespace), std::move(text), response,
                                std::move(done))
      ->Start(loop);
}

}  // namespace kvmesh::meta

#include "services/shard/core/save_slab.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/forward/key_namespace.h"
#include "common/slab/cut_points.h"
#include "services/shard/core/row_bytes.h"

namespace kvmesh::shard {
namespace {

slab::StateKind KindOf(model::LayerKind kind) {
  switch (kind) {
    case model::LayerKind::kKeyValue:
      return slab::StateKind::kKeyValue;
    case model::LayerKind::kSlidingWindow:
      return slab::StateKind::kSlidingWindow;
    case model::LayerKind::kRecurrent:
      return slab::StateKind::kRecurrent;
  }
  return slab::StateKind::kKeyValue;
}

// "q4_1/kv-f16": 4. 0 when the name of the weights has no number.
uint8_t QuantBits(absl::string_view quant) {
  const absl::string_view weights = quant.substr(0, quant.find('/'));
  const auto digit = std::find_if(weights.begin(), weights.end(), absl::ascii_isdigit);
  const auto end = std::find_if_not(digit, weights.end(), absl::ascii_isdigit);
  uint32_t bits = 0;
  const absl::string_view number = weights.substr(static_cast<size_t>(digit - weights.begin()),
                                                  static_cast<size_t>(end - digit));
  return absl::SimpleAtoi(number, &bits) && bits <= 64 ? static_cast<uint8_t>(bits) : 0;
}

// The size that the file will have: the meta section's does not depend on what its CRCs are.
uint64_t FileBytes(slab::SlabMeta meta, const StateSnapshot& snapshot, slab::DType dtype) {
  for (uint32_t layer = snapshot.layers.begin; layer < snapshot.layers.end; ++layer) {
    slab::Region region{.kind = KindOf(snapshot.state[layer]->kind()),
                        .dtype = dtype,
                        .length = 2 * snapshot.tokens.size() * snapshot.state[layer]->row_bytes()};
    region.piece_crcs.resize((region.padded_length() + slab::kPieceBytes - 1) / slab::kPieceBytes);
    meta.header.payload_bytes += region.padded_length();
    meta.regions.push_back(std::move(region));
  }
  meta.meta_bytes = static_cast<uint32_t>(slab::EncodeTlvs(meta).size());
  return meta.file_bytes();
}

// K of all tokens, then V of them.
absl::StatusOr<std::unique_ptr<uint8_t[]>> CopyRegion(const LayerState& state, uint64_t tokens) {
  const uint64_t half = tokens * state.row_bytes();
  std::unique_ptr<uint8_t[]> region(new (std::nothrow) uint8_t[2 * half]);
  if (region == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", 2 * half, " bytes"));
  }
  KVMESH_RETURN_IF_ERROR(state.CopyRows(0, tokens, absl::MakeSpan(region.get(), half),
                                        absl::MakeSpan(region.get() + half, half)));
  return region;
}

}  // namespace

SlabFacts SlabFactsOf(const EngineInfo& info) {
  const auto& kinds = info.config.layer_kinds;
  return {.layers = info.layers,
          .model_layers = info.config.layer_count,
          .kv_dtype = info.kv_dtype,
          .quant_bits = QuantBits(info.quant),
          .context_length = info.config.context_length,
          .can_be_cut = std::all_of(kinds.begin(), kinds.end(), [](model::LayerKind kind) {
            return kind == model::LayerKind::kKeyValue;
          })};
}

std::string TextOf(absl::Span<const uint32_t> ids, const Vocabulary& vocabulary,
                   std::vector<uint32_t>* ends) {
  std::string text;
  if (ends != nullptr) ends->reserve(ids.size());
  for (const uint32_t id : ids) {
    text += vocabulary.KeyBytes(id);
    if (ends != nullptr) ends->push_back(static_cast<uint32_t>(text.size()));
  }
  return text;
}

bool Spell(absl::Span<const uint32_t> ids, absl::string_view text, const Vocabulary& vocabulary) {
  for (const uint32_t id : ids) {
    const std::string piece = vocabulary.KeyBytes(id);
    if (text.substr(0, piece.size()) != piece) return false;
    text.remove_prefix(piece.size());
  }
  return text.empty();
}

Sha256Digest KeyOf(const forward::CacheNamespace& cache_namespace, absl::Span<const uint32_t> ids,
                   const Vocabulary& vocabulary) {
  return slab::ContentKey(forward::KeyNamespaceOf(cache_namespace),
                          TextOf(ids, vocabulary, nullptr));
}

absl::StatusOr<SlabDraft> DraftSlab(const StateSnapshot& snapshot, forward::SaveReason reason,
                                    const SlabFacts& facts, const Vocabulary& vocabulary) {
  SlabDraft draft;
  slab::SlabMeta& meta = draft.meta;
  std::vector<uint32_t> ends;
  meta.text = TextOf(snapshot.tokens, vocabulary, &ends);
  if (meta.text.size() > slab::kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", meta.text.size(), " bytes; a slab holds ", slab::kTextBytesMax));
  }
  meta.header.quant_bits = facts.quant_bits;
  meta.header.reason =
      static_cast<slab::SaveReason>(static_cast<int>(reason) + int{1});  // same order, from 1
  meta.header.context_size = facts.context_length;
  meta.header.layers = snapshot.layers;
  meta.header.token_count = static_cast<uint32_t>(snapshot.tokens.size());
  meta.key_namespace = forward::KeyNamespaceOf(snapshot.cache_namespace);
  meta.hostname = facts.hostname;
  meta.writer_version = facts.writer_version;
  meta.token_ids = snapshot.tokens;
  meta.model_layers = facts.model_layers;
  if (!snapshot.last_row.empty()) {
    meta.last_output =
        slab::OutputRow{.dtype = slab::DType::kF32, .bytes = BytesOf(snapshot.last_row)};
  }
  if (facts.can_be_cut) {
    meta.cut_points = slab::ChooseCutPoints(meta.key_namespace, meta.text, ends, facts.min_tokens,
                                            facts.align_tokens);
  }
  draft.key = slab::ContentKey(meta.key_namespace, meta.text);
  draft.file_bytes = FileBytes(meta, snapshot, facts.kv_dtype);
  return draft;
}

absl::StatusOr<std::shared_ptr<const BuiltSlab>> BuildSlab(SlabDraft draft, StateSnapshot snapshot,
                                                           const WriteId& write_id, uint64_t now_s,
                                                           const SlabFacts& facts,
                                                           const std::atomic<bool>& cancel) {
  draft.meta.write_id = write_id;
  draft.meta.header.creation_time_s = now_s;
  draft.meta.header.last_used_time_s = now_s;
  KVMESH_ASSIGN_OR_RETURN(slab::SlabWriter writer, slab::SlabWriter::Create(std::move(draft.meta)));
  std::vector<std::unique_ptr<uint8_t[]>> regions;
  regions.reserve(snapshot.layers.size());
  for (uint32_t layer = snapshot.layers.begin; layer < snapshot.layers.end; ++layer) {
    if (cancel.load(std::memory_order_relaxed)) return absl::CancelledError("given up");
    const std::unique_ptr<LayerState> state = std::move(snapshot.state[layer]);
    const uint64_t bytes = 2 * snapshot.tokens.size() * state->row_bytes();
    KVMESH_ASSIGN_OR_RETURN(regions.emplace_back(), CopyRegion(*state, snapshot.tokens.size()));
    const absl::string_view view(reinterpret_cast<const char*>(regions.back().get()), bytes);
    KVMESH_RETURN_IF_ERROR(writer.AddRegion(KindOf(state->kind()), facts.kv_dtype,
                                            /*first_position=*/0, {view}));
  }
  KVMESH_ASSIGN_OR_RETURN(slab::SlabImage image, writer.Finish());
  return std::make_shared<const BuiltSlab>(std::move(image), std::move(regions));
}

}  // namespace kvmesh::shard

// Fragments of one tokenisation that cover all layers become a row.
#include <algorithm>
#include <tuple>

#include "absl/algorithm/container.h"
#include "services/meta/core/rows.h"

namespace kvmesh::meta {

bool Rows::LearnModelLayers(const slab::KeyNamespace& key_namespace, uint32_t model_layers) {
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(key_namespace);
  if (!id.has_value()) return true;
  const uint32_t known = ledger_.namespaces.model_layers(*id);
  if (known != 0) return known == model_layers;
  ledger_.namespaces.set_model_layers(*id, model_layers);
  if (ledger_.namespaces.holders(*id) == 1) return true;  // nothing can have waited for it
  for (const auto& [group, end] : fragment_ends_) {
    if (slabs_.group(group).key_namespace == *id) ledger_.Changed(slabs_.group(group).key);
  }
  return true;
}

void Rows::Promote(const Sha256Digest& key) {
  if (RowOfKey(key) != kNone) return;
  std::vector<SlabIndex> fragments;
  for (GroupIndex i = slabs_.FirstOfKey(key); i != kNone; i = slabs_.group(i).next_of_key) {
    const Group& group = slabs_.group(i);
    if (group.kind != GroupKind::kFragment || group.ends_inside_character) continue;
    fragments.push_back(group.first_slab);
  }
  if (fragments.empty()) return;
  const uint32_t model_layers = ledger_.namespaces.model_layers(
      slabs_.group(slabs_.slab(fragments.front()).group).key_namespace);
  if (model_layers == 0) return;

  const auto text_of = [this](SlabIndex slab) {
    const Group& group = slabs_.group(slabs_.slab(slab).group);
    return std::pair(group.tokens_sha256, group.token_count);
  };
  absl::c_stable_sort(fragments,
                      [&text_of](SlabIndex a, SlabIndex b) { return text_of(a) < text_of(b); });
  for (auto begin = fragments.begin(); begin != fragments.end();) {
    const auto end = std::find_if(begin, fragments.end(), [&text_of, begin](SlabIndex slab) {
      return text_of(slab) != text_of(*begin);
    });
    const std::vector<SlabIndex> cover =
        Cover(absl::MakeSpan(&*begin, static_cast<size_t>(end - begin)), model_layers);
    if (!cover.empty() && !AskCutPoints(cover)) {
      JoinFragments(cover);
      return;
    }
    begin = end;
  }
}

// Slabs that together hold layers 0..L-1, as few as possible, of stores that serve if these
// suffice; empty: they do not cover. Each step takes the slab that reaches furthest, which is
// optimal for intervals; of several the one with the lowest write_id, then store.
std::vector<SlabIndex> Rows::Cover(absl::Span<const SlabIndex> candidates,
                                   uint32_t model_layers) const {
  const auto rank = [this](SlabIndex index) {
    const Slab& slab = slabs_.slab(index);
    return std::tuple(-int{slab.layer_end}, slab.write_id, slab.store);
  };
  for (const bool serving_only : {true, false}) {
    std::vector<SlabIndex> cover;
    uint32_t covered = 0;
    while (covered < model_layers) {
      SlabIndex best = kNone;
      for (const SlabIndex index : candidates) {
        const Slab& slab = slabs_.slab(index);
        if (slab.layer_begin > covered || slab.layer_end <= covered) continue;
        if (slab.layer_end > model_layers) continue;
        if (serving_only && !ledger_.Serves(slab.store)) continue;
        if (best == kNone || rank(index) < rank(best)) best = index;
      }
      if (best == kNone) break;
      cover.push_back(best);
      covered = slabs_.slab(best).layer_end;
    }
    if (covered >= model_layers) return cover;
  }
  return {};
}

// Whether cut points of some are not known here; their stores are asked, once.
bool Rows::AskCutPoints(absl::Span<const SlabIndex> cover) {
  bool missing = false;
  for (const SlabIndex index : cover) {
    Slab& slab = slabs_.slab(index);
    if (slab.cut_points_known) continue;
    missing = true;
    if (slab.cut_points_asked || !ledger_.Serves(slab.store)) continue;
    slab.cut_points_asked = true;
    ledger_.Emit(ToStore{.stream = ledger_.StoreAt(slab.store).stream,
                         .message = DescribeSlab{slabs_.NameOf(index)}});
  }
  return missing;
}

void Rows::JoinFragments(absl::Span<const SlabIndex> cover) {
  const GroupIndex row = CopyGroup(slabs_.slab(cover.front()).group, GroupKind::kRow);
  for (const SlabIndex slab : cover) {
    const GroupIndex fragment = slabs_.slab(slab).group;
    Unfile(fragment);
    DropFragmentEnd(fragment);
    slabs_.MoveSlab(slab, row);
    Group& from = slabs_.group(fragment);
    Group& to = slabs_.group(row);
    to.last_used_ms = std::max(to.last_used_ms, from.last_used_ms);
    to.hit_count = std::max(to.hit_count, from.hit_count);
    to.leases += from.leases;
    if (from.leases > 0) ledger_.leases.Replace(fragment, {row});
    from.leases = 0;
    RemoveGroup(fragment);
  }
  // A lease that held two of the fragments holds the row once.
  if (slabs_.group(row).leases > 0) CountLeases(row);
  ledger_.Count("rows_promoted");
  OpenRow(row);
}

// The inner cut points that every slab of the group lists; they are kept here no longer.
std::vector<slab::CutPoint> Rows::TakeCommonCutPoints(GroupIndex group) {
  std::vector<slab::CutPoint> common;
  bool first = true;
  for (const SlabIndex slab : slabs_.SlabsOf(group)) {
    std::vector<slab::CutPoint> own;
    if (const auto found = ledger_.cut_points.find(slab); found != ledger_.cut_points.end()) {
      own = std::move(found->second);
      ledger_.cut_points.erase(found);
    }
    slabs_.slab(slab).cut_points_known = false;
    if (first) {
      common = std::move(own);
      first = false;
      continue;
    }
    const auto not_listed = [&own](const slab::CutPoint& point) {
      return !absl::c_linear_search(own, point);
    };
    if (common != own)
      common.erase(std::remove_if(common.begin(), common.end(), not_listed), common.end());
  }
  return common;
}

}  // namespace kvmesh::meta

// What stores say of their slabs, filed under what is known.
#include "services/meta/core/rows.h"

namespace kvmesh::meta {
namespace {

uint32_t PagesOf(const SlabFacts& facts) {
  return static_cast<uint32_t>((facts.size_bytes + kPageBytes - 1) / kPageBytes);
}

bool IsOneText(const Group& group, const SlabFacts& facts) {
  return group.tokens_sha256 == facts.tokens_sha256 && group.token_count == facts.token_count &&
         group.text_bytes == facts.text_bytes && group.block_hash == facts.block_hash &&
         group.tail_hash == facts.tail_hash &&
         group.ends_inside_character == facts.ends_inside_character;
}

void SetText(Group* group, const SlabFacts& facts) {
  group->tokens_sha256 = facts.tokens_sha256;
  group->token_count = facts.token_count;
  group->text_bytes = facts.text_bytes;
  group->block_hash = facts.block_hash;
  group->tail_hash = facts.tail_hash;
  group->ends_inside_character = facts.ends_inside_character;
}

}  // namespace

std::pair<Rows::Linked, GroupIndex> Rows::Link(StoreSlot store, const SlabFacts& facts) {
  const SlabIndex slab = slabs_.Find(facts.name, store);
  if (slab == kNone) return LinkUnknown(store, facts);
  if (const uint16_t inventory = ledger_.StoreAt(store).inventory;
      slabs_.slab(slab).named_in != inventory) {
    slabs_.slab(slab).named_in = inventory;
    slabs_.slab(slab).cut_points_asked = false;  // by an older stream
  }
  switch (slabs_.slab(slab).state) {
    case SlabState::kReserved:
      return LinkReserved(slab, facts);
    case SlabState::kLive:
      return Reannounce(slab, facts);
    case SlabState::kDeleting:
      return {Linked::kSettled, kNone};
  }
  return {Linked::kSettled, kNone};
}

std::pair<Rows::Linked, GroupIndex> Rows::LinkUnknown(StoreSlot store, const SlabFacts& facts) {
  const bool cancelled = ledger_.cancelled.Contains(facts.name.write_id, ledger_.now);
  const bool fits = LayersFit(facts);
  Group group{.key = facts.name.key,
              .last_used_ms = Millis(ledger_.now - facts.idle),
              .key_namespace = AcquireNamespace(facts.key_namespace),
              .hit_count = facts.hit_count,
              .kind = GroupKind::kFragment};
  SetText(&group, facts);
  const GroupIndex index = slabs_.AddGroup(group);
  const SlabIndex slab =
      slabs_.AddSlab(index, Slab{.write_id = facts.name.write_id,
                                 .pages = PagesOf(facts),
                                 .payload_crc32c = facts.payload_crc32c,
                                 .layer_begin = static_cast<uint16_t>(facts.name.layers.begin),
                                 .layer_end = static_cast<uint16_t>(facts.name.layers.end),
                                 .store = store,
                                 .state = SlabState::kLive,
                                 .named_in = ledger_.StoreAt(store).inventory});
  if (cancelled || !fits) {
    ledger_.Count(cancelled ? "slabs_of_cancelled_writes" : "slabs_of_other_models");
    BecomeDoomed(index);
    return {Linked::kSettled, kNone};
  }
  KeepCutPoints(slab, facts.cut_points);
  BecomeFragment(index);
  if (facts.model_layers != 0) LearnModelLayers(facts.key_namespace, facts.model_layers);
  return {Linked::kSettled, kNone};
}

std::pair<Rows::Linked, GroupIndex> Rows::LinkReserved(SlabIndex slab, const SlabFacts& facts) {
  const GroupIndex write = slabs_.slab(slab).group;
  Group& group = slabs_.group(write);
  const bool one_text = group.token_count == 0 || IsOneText(group, facts);
  const uint32_t reserved = slabs_.slab(slab).pages;
  slabs_.SetPages(slab, PagesOf(facts));
  if (!one_text || PagesOf(facts) > reserved || !LayersFit(facts)) {
    ledger_.Count("writes_broken_by_a_slab");
    return {Linked::kBreaksWrite, write};
  }
  SetText(&group, facts);
  slabs_.slab(slab).payload_crc32c = facts.payload_crc32c;
  slabs_.SetState(slab, SlabState::kLive);
  KeepCutPoints(slab, facts.cut_points);
  ledger_.RoomChanged(slabs_.slab(slab).store);
  return {Linked::kOfWrite, write};
}

// The store says again what it has: by an inventory, or because it was asked for cut points.
std::pair<Rows::Linked, GroupIndex> Rows::Reannounce(SlabIndex slab, const SlabFacts& facts) {
  const Slab& it = slabs_.slab(slab);
  const Group& group = slabs_.group(it.group);
  const bool same = IsOneText(group, facts) && it.payload_crc32c == facts.payload_crc32c &&
                    it.pages == PagesOf(facts);
  if (!same) {
    ledger_.Count("slabs_with_other_bytes");
    if (group.kind == GroupKind::kWriting) return {Linked::kBreaksWrite, it.group};
    if (group.kind == GroupKind::kRow) BreakRow(it.group, GoneCause::kSlabBad);
    DoomSlab(slab);
    return {Linked::kSettled, kNone};
  }
  if (group.kind == GroupKind::kFragment && !it.cut_points_known) {
    KeepCutPoints(slab, facts.cut_points);
    ledger_.Changed(group.key);
  }
  return {Linked::kSettled, kNone};
}

bool Rows::LayersFit(const SlabFacts& facts) const {
  const std::optional<NamespaceId> id = ledger_.namespaces.Find(facts.key_namespace);
  const uint32_t known = id.has_value() ? ledger_.namespaces.model_layers(*id) : 0;
  if (known != 0 && facts.model_layers != 0 && facts.model_layers != known) return false;
  const uint32_t layers = known != 0 ? known : facts.model_layers;
  return layers == 0 || facts.name.layers.end <= layers;
}

void Rows::KeepCutPoints(SlabIndex slab, const std::vector<slab::CutPoint>& cut_points) {
  slabs_.slab(slab).cut_points_known = true;
  slabs_.slab(slab).cut_points_asked = false;
  ledger_.cut_points[slab] = cut_points;
}

}  // namespace kvmesh::meta

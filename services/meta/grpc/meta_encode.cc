// The encoding half of meta_codec.h.
#include <algorithm>

#include "common/base/utf8.h"
#include "common/rpc/slab_codec.h"
#include "services/meta/grpc/meta_codec.h"

namespace kvmesh::meta {
namespace {

void FillStore(const StoreUid& store, const std::string& address, Tier tier, v1::SlabPlace* place) {
  place->set_store_id(store.bytes().data(), store.bytes().size());
  place->set_address(address);
  const absl::string_view name = ToString(tier);
  place->set_tier(name.data(), name.size());
}

}  // namespace

v1::CacheNamespace EncodeNamespace(const slab::KeyNamespace& key_namespace) {
  v1::CacheNamespace proto;
  proto.set_model_fp(key_namespace.model_fp);
  // A proto string must be UTF-8, and this one came out of a file.
  if (IsUtf8(key_namespace.quant)) proto.set_quant(key_namespace.quant);
  proto.set_ctx_params_hash(key_namespace.ctx_params);
  return proto;
}

v1::SlabId EncodeSlab(const SlabName& name) {
  return rpc::EncodeSlabId(name.key, name.layers, name.write_id);
}

v1::Incarnation EncodeIncarnation(const Incarnation& incarnation) {
  v1::Incarnation proto;
  proto.set_number(incarnation.number);
  proto.set_id(std::string(incarnation.id.bytes()));
  return proto;
}

v1::SlabPlace EncodePlace(const PlacedSlab& slab) {
  v1::SlabPlace proto;
  *proto.mutable_slab() = EncodeSlab(slab.name);
  FillStore(slab.store, slab.address, slab.tier, &proto);
  proto.set_size_bytes(slab.size_bytes);
  return proto;
}

v1::RowInfo EncodeRow(const RowSnapshot& row) {
  v1::RowInfo proto;
  proto.set_key(row.key.ToHex());
  proto.set_write_id(row.write_id().ToHex());
  proto.set_token_count(row.token_count);
  proto.set_text_bytes(row.text_bytes);
  proto.set_tokens_sha256(std::string(row.tokens_sha256.bytes()));
  for (const PlacedSlab& slab : row.slabs) *proto.add_slabs() = EncodePlace(slab);
  return proto;
}

v1::RowSummary EncodeSummary(const RowSnapshot& row) {
  v1::RowSummary proto;
  *proto.mutable_row() = EncodeRow(row);
  *proto.mutable_namespace_() = EncodeNamespace(row.key_namespace);
  proto.set_state(std::string(ToString(row.state)));
  proto.set_hit_count(row.hit_count);
  SetMillis(row.idle, proto.mutable_idle());
  proto.set_leases(row.leases);
  return proto;
}

v1::ReservedRange EncodeRange(const ReservedRange& range) {
  v1::ReservedRange proto;
  proto.mutable_layers()->set_begin(range.layers.begin);
  proto.mutable_layers()->set_end(range.layers.end);
  proto.set_store_id(std::string(range.store.bytes()));
  proto.set_address(range.address);
  proto.set_tier(std::string(ToString(range.tier)));
  return proto;
}

v1::ReservationSummary EncodeReservation(const ReservationSnapshot& reservation) {
  v1::ReservationSummary proto;
  proto.set_write_id(reservation.write_id.ToHex());
  proto.set_key(reservation.key.ToHex());
  *proto.mutable_namespace_() = EncodeNamespace(reservation.key_namespace);
  proto.set_kind(reservation.kind == ReservationKind::kRow ? v1::RESERVATION_KIND_ROW
                                                           : v1::RESERVATION_KIND_FRAGMENT);
  proto.set_reason(static_cast<v1::SaveReason>(reservation.reason));
  proto.set_state(std::string(ToString(reservation.state)));
  proto.set_slabs_linked(reservation.slabs_linked);
  for (const ReservedRange& range : reservation.ranges) *proto.add_ranges() = EncodeRange(range);
  proto.set_size_bytes(reservation.size_bytes);
  SetMillis(reservation.age, proto.mutable_age());
  SetMillis(reservation.expires_in, proto.mutable_expires_in());
  return proto;
}

v1::StoreStatus EncodeStore(const StoreSnapshot& store) {
  v1::StoreStatus proto;
  proto.set_store_id(std::string(store.uid.bytes()));
  proto.set_address(store.address);
  proto.set_node(store.node);
  proto.set_tier(std::string(ToString(store.tier)));
  proto.set_state(std::string(ToString(store.state)));
  proto.set_budget_bytes(store.budget_bytes);
  proto.set_live_bytes(store.live_bytes);
  proto.set_in_flight_bytes(store.reserved_bytes);
  proto.set_deleting_bytes(store.deleting_bytes);
  proto.set_quarantined_bytes(store.quarantined_bytes);
  proto.set_slabs(store.slabs);
  return proto;
}

v1::Lease EncodeLease(const LeaseId& lease, absl::Duration ttl, const Incarnation& incarnation) {
  v1::Lease proto;
  proto.set_lease_id(std::string(lease.bytes()));
  SetMillis(ttl, proto.mutable_ttl());
  *proto.mutable_incarnation() = EncodeIncarnation(incarnation);
  return proto;
}

void EncodeHit(const LookupHit& hit, const ReadIndex& index, v1::LookupResponse* response) {
  const std::string row_key = hit.row_key.ToHex();
  const std::string write_id =
      hit.slabs.empty() ? std::string() : hit.slabs.front().write_id.ToHex();
  response->set_found(true);
  response->set_token_count(hit.token_count);
  response->set_text_bytes(hit.text_bytes);
  response->set_key(hit.key.ToHex());
  v1::RowInfo& row = *response->mutable_row();
  row.set_key(row_key);
  row.set_write_id(write_id);
  row.set_token_count(hit.row_token_count);
  row.set_text_bytes(hit.row_text_bytes);
  row.set_tokens_sha256(hit.tokens_sha256.bytes().data(), hit.tokens_sha256.bytes().size());
  const int count = static_cast<int>(hit.slabs.size());
  while (row.slabs_size() > count) row.mutable_slabs()->RemoveLast();
  for (int i = 0; i < count; ++i) {
    const RowSlab& slab = hit.slabs[static_cast<size_t>(i)];
    v1::SlabPlace& place = i < row.slabs_size() ? *row.mutable_slabs(i) : *row.add_slabs();
    place.mutable_slab()->set_key(row_key);
    place.mutable_slab()->mutable_layers()->set_begin(slab.layers.begin);
    place.mutable_slab()->mutable_layers()->set_end(slab.layers.end);
    place.mutable_slab()->set_write_id(
        slab.write_id == hit.slabs.front().write_id ? write_id : slab.write_id.ToHex());
    const ReadIndex::Store store = index.StoreAt(slab.slot);
    FillStore(store.uid, store.address, store.tier, &place);
    place.set_size_bytes(slab.size_bytes);
  }
}

void SetMillis(absl::Duration duration, v1::Millis* millis) {
  millis->set_value(
      static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(duration))));
}

}  // namespace kvmesh::meta

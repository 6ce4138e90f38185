#include "services/shard/grpc/meta_client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::shard {
namespace {

void SetBytes(std::string* field, absl::string_view bytes) {
  field->assign(bytes.data(), bytes.size());
}

void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
}

}  // namespace

MetaClient::MetaClient(const std::string& address, const std::shared_ptr<rpc::TlsIdentity>& tls,
                       rpc::CallGroup& reserving)
    : reserving_(reserving),
      stub_(v1::MetaService::NewStub(rpc::MakeChannel(address, tls, rpc::Role::kMeta))) {}

absl::StatusOr<Reservation> MetaClient::ReserveFragment(const FragmentRequest& request,
                                                        absl::Duration timeout) {
  v1::ReserveRequest proto;
  SetBytes(proto.mutable_request_id(), RandomId<WriteId>().bytes());
  proto.set_kind(v1::RESERVATION_KIND_FRAGMENT);
  v1::CacheNamespace& name = *proto.mutable_namespace_();
  SetBytes(name.mutable_model_fp(), request.cache_namespace.model_fp.bytes());
  name.set_quant(request.cache_namespace.quant);
  SetBytes(name.mutable_ctx_params_hash(), request.cache_namespace.ctx_params_hash.bytes());
  proto.set_key(request.key.ToHex());
  proto.set_model_layers(request.model_layers);
  v1::RangeBytes& range = *proto.add_ranges();
  range.mutable_layers()->set_begin(request.layers.begin);
  range.mutable_layers()->set_end(request.layers.end);
  range.set_size_bytes(request.file_bytes);
  proto.set_reason(
      static_cast<v1::SaveReason>(v1::SAVE_REASON_COLD + static_cast<int>(request.reason)));
  // The arbiter may spend half of a save's time on making room.
  const absl::Duration room_wait = std::min(timeout / 2, limits::kRoomWaitMax);
  proto.mutable_room_wait()->set_value(static_cast<uint64_t>(absl::ToInt64Milliseconds(room_wait)));

  grpc::ClientContext context;
  SetDeadline(context, timeout);
  const rpc::CallGroup::Member member(&reserving_, context);
  v1::ReserveResponse answer;
  KVMESH_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Reserve(&context, proto, &answer)));
  if (answer.ranges_size() != 1 || answer.ranges(0).address().empty()) {
    return absl::InternalError(
        absl::StrCat("the arbiter names ", answer.ranges_size(), " stores for one range"));
  }
  Reservation reservation{.store_address = answer.ranges(0).address()};
  auto write_id = WriteId::FromBytes(answer.write_id(), "write_id");
  if (!write_id.ok()) return absl::InternalError(write_id.status().message());
  reservation.write_id = *write_id;
  return reservation;
}

void MetaClient::Cancel(const WriteId& write_id, absl::Duration timeout) {
  v1::CancelReservationRequest request;
  SetBytes(request.mutable_write_id(), write_id.bytes());
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  v1::CancelReservationResponse answer;
  stub_->CancelReservation(&context, request, &answer).ok();
}

}  // namespace kvmesh::shard

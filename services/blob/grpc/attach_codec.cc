#include "services/blob/grpc/attach_codec.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "services/blob/grpc/blob_codec.h"

namespace kvmesh::blob {
namespace {

constexpr uint64_t kIdleMillisMax = uint64_t{1} << 52;

absl::StatusOr<Welcome> DecodeWelcome(const v1::StoreWelcome& welcome) {
  Welcome decoded{.incarnation = {.number = welcome.incarnation().number()}};
  KVMESH_ASSIGN_OR_RETURN(
      decoded.incarnation.id,
      IncarnationId::FromBytes(welcome.incarnation().id(), "welcome.incarnation.id"));
  return decoded;
}

absl::StatusOr<RecordUseCommand> DecodeUses(const v1::RecordUse& record) {
  if (record.uses_size() > kUsesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("record_use.uses has ", record.uses_size(), " entries, at most ", kUsesMax));
  }
  RecordUseCommand command;
  command.uses.reserve(static_cast<size_t>(record.uses_size()));
  for (const v1::SlabUse& use : record.uses()) {
    KVMESH_ASSIGN_OR_RETURN(const SlabName name, DecodeName(use.slab()));
    const uint64_t idle_ms = std::min(use.idle().value(), kIdleMillisMax);
    command.uses.push_back({.name = name,
                            .hit_count = use.hit_count(),
                            .idle = absl::Milliseconds(static_cast<int64_t>(idle_ms))});
  }
  return command;
}

absl::StatusOr<TextCommand> DecodeTextRequest(const v1::TextRequest& request) {
  if (request.bytes_max() > slab::kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text_request.bytes_max is ", request.bytes_max(), ", at most ", slab::kTextBytesMax));
  }
  TextCommand command{.request = request.request(), .bytes_max = request.bytes_max()};
  KVMESH_ASSIGN_OR_RETURN(command.name, DecodeName(request.slab()));
  return command;
}

template <typename Command>
absl::StatusOr<ArbiterCommand> AboutSlab(const v1::SlabId& slab) {
  KVMESH_ASSIGN_OR_RETURN(const SlabName name, DecodeName(slab));
  return Command{.name = name};
}

}  // namespace

absl::StatusOr<ArbiterCommand> DecodeCommand(const v1::AttachStoreResponse& frame) {
  switch (frame.frame_case()) {
    case v1::AttachStoreResponse::kWelcome:
      return DecodeWelcome(frame.welcome());
    case v1::AttachStoreResponse::kDeleteSlab:
      return AboutSlab<DeleteCommand>(frame.delete_slab().slab());
    case v1::AttachStoreResponse::kVerifySlab:
      return AboutSlab<VerifyCommand>(frame.verify_slab().slab());
    case v1::AttachStoreResponse::kDescribeSlab:
      return AboutSlab<DescribeCommand>(frame.describe_slab().slab());
    case v1::AttachStoreResponse::kRecordUse:
      return DecodeUses(frame.record_use());
    case v1::AttachStoreResponse::kPing:
      return PingCommand{};
    case v1::AttachStoreResponse::kTextRequest:
      return DecodeTextRequest(frame.text_request());
    case v1::AttachStoreResponse::FRAME_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a frame of the arbiter is none of this version's");
}

absl::string_view NameOf(const ArbiterCommand& command) {
  static constexpr std::array<absl::string_view, std::variant_size_v<ArbiterCommand>> kNames = {
      "welcome", "delete", "verify", "describe", "record_use", "ping", "text"};
  return kNames[command.index()];
}

v1::StoreHello EncodeHello(const StoreFacts& facts, const StoreIdentity& identity) {
  v1::StoreHello hello;
  hello.set_protocol(limits::kProtocolVersion);
  hello.set_store_id(std::string(identity.id().bytes()));
  hello.set_boot_id(std::string(facts.boot_id.bytes()));
  hello.set_address(facts.address);
  hello.set_node(facts.node);
  hello.set_tier(facts.tier);
  hello.set_budget_bytes(facts.budget_bytes);
  if (identity.seen()) {
    hello.mutable_incarnation_seen()->set_number(identity.seen()->number);
    hello.mutable_incarnation_seen()->set_id(std::string(identity.seen()->id.bytes()));
  }
  return hello;
}

v1::SlabAnnouncement EncodeAnnouncement(const SlabInfo& info, uint64_t now_s) {
  v1::SlabAnnouncement announcement;
  *announcement.mutable_slab() = EncodeInfo(info, now_s);
  announcement.set_model_layers(info.model_layers);
  announcement.set_ends_inside_character(info.ends_inside_character);
  return announcement;
}

v1::StoreHeartbeat EncodeHeartbeat(const Usage& usage, const std::vector<WriteId>& open_puts) {
  v1::StoreHeartbeat heartbeat;
  heartbeat.set_used_bytes(usage.used_bytes);
  heartbeat.set_in_flight_bytes(usage.in_flight_bytes);
  heartbeat.set_quarantined_bytes(usage.quarantined_bytes);
  const size_t count = std::min(open_puts.size(), kOpenPutsMax);
  for (size_t i = 0; i < count; ++i) {
    heartbeat.add_open_put_write_ids(std::string(open_puts[i].bytes()));
  }
  return heartbeat;
}

v1::SlabRemoved EncodeGone(const SlabGone& gone) {
  v1::SlabRemoved removed;
  *removed.mutable_slab() = EncodeName(gone.name);
  switch (gone.cause) {
    case SlabGone::Cause::kDeleted:
      removed.set_cause(v1::REMOVAL_CAUSE_DELETED);
      break;
    case SlabGone::Cause::kQuarantined:
      removed.set_cause(v1::REMOVAL_CAUSE_QUARANTINED);
      break;
    case SlabGone::Cause::kOther:
      removed.set_cause(v1::REMOVAL_CAUSE_OTHER);
      break;
  }
  return removed;
}

v1::SlabVerified EncodeChecked(const SlabChecked& checked) {
  v1::SlabVerified verified;
  *verified.mutable_slab() = EncodeName(checked.name);
  verified.set_sound(checked.sound);
  return verified;
}

v1::SlabText EncodeText(const SlabText& text) {
  v1::SlabText proto;
  proto.set_request(text.request);
  if (text.text) proto.set_text(*text.text);
  return proto;
}

}  // namespace kvmesh::blob

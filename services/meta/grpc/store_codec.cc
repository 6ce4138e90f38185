#include "services/meta/grpc/store_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "services/meta/grpc/meta_codec.h"

namespace kvmesh::meta {
namespace {

absl::Status OutOfRange(absl::string_view field, uint64_t value, uint64_t value_max) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", at most ", value_max));
}

absl::Status CheckLabel(absl::string_view value, absl::string_view field, size_t bytes_min) {
  if (value.size() >= bytes_min && value.size() <= kAddressBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", value.size(), " bytes; ", bytes_min, " to ", kAddressBytesMax));
}

absl::Status DecodeCutPoints(const v1::SlabInfo& info, SlabFacts* facts) {
  uint32_t tokens = 0;
  uint32_t bytes = 0;
  facts->cut_points.reserve(static_cast<size_t>(info.cut_points_size()));
  for (const v1::CutPoint& proto : info.cut_points()) {
    slab::CutPoint point{.token_count = proto.token_count(),
                         .text_bytes = proto.text_bytes(),
                         .block_hash = proto.block_hash(),
                         .tail_hash = proto.tail_hash()};
    KVMESH_ASSIGN_OR_RETURN(point.key, Sha256Digest::FromHex(proto.key(), "cut_points.key"));
    if (point.token_count <= tokens || point.text_bytes <= bytes ||
        point.token_count >= facts->token_count || point.text_bytes >= facts->text_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("the cut point at ", point.token_count,
                                                     " tokens, ", point.text_bytes,
                                                     " bytes is out of order or behind the end"));
    }
    tokens = point.token_count;
    bytes = point.text_bytes;
    facts->cut_points.push_back(point);
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const v1::SlabAnnouncement& announcement) {
  const v1::SlabInfo& info = announcement.slab();
  if (info.charged_bytes() > kSlabBytesMax) {
    return OutOfRange("slab.charged_bytes", info.charged_bytes(), kSlabBytesMax);
  }
  if (info.charged_bytes() == 0 || info.charged_bytes() % kPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("slab.charged_bytes is ", info.charged_bytes(),
                                                   ", not whole pages of ", kPageBytes));
  }
  if (info.text_bytes() > slab::kTextBytesMax) {
    return OutOfRange("slab.text_bytes", info.text_bytes(), slab::kTextBytesMax);
  }
  if (announcement.model_layers() > limits::kLayersMax) {
    return OutOfRange("model_layers", announcement.model_layers(), limits::kLayersMax);
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreInventory> DecodeInventory(const v1::InventoryPage& page, StreamId stream) {
  if (page.slabs_size() > kInventoryPageMax) {
    return OutOfRange("inventory.slabs", static_cast<uint64_t>(page.slabs_size()),
                      kInventoryPageMax);
  }
  StoreInventory inventory{.stream = stream, .last = page.last()};
  inventory.slabs.reserve(static_cast<size_t>(page.slabs_size()));
  for (const v1::SlabAnnouncement& announcement : page.slabs()) {
    KVMESH_ASSIGN_OR_RETURN(SlabFacts facts, DecodeFacts(announcement));
    inventory.slabs.push_back(std::move(facts));
  }
  return inventory;
}

absl::StatusOr<SlabRemoved> DecodeRemoved(const v1::SlabRemoved& removed, StreamId stream) {
  SlabRemoved command{.stream = stream};
  KVMESH_ASSIGN_OR_RETURN(command.name, DecodeSlab(removed.slab()));
  switch (removed.cause()) {
    case v1::REMOVAL_CAUSE_DELETED:
      command.cause = RemovalCause::kDeleted;
      return command;
    case v1::REMOVAL_CAUSE_QUARANTINED:
      command.cause = RemovalCause::kQuarantined;
      return command;
    case v1::REMOVAL_CAUSE_OTHER:
      command.cause = RemovalCause::kOther;
      return command;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "removed.cause is ", static_cast<int>(removed.cause()), ", no cause of a removal"));
  }
}

absl::StatusOr<StoreHeartbeat> DecodeHeartbeat(const v1::StoreHeartbeat& heartbeat,
                                               StreamId stream) {
  if (heartbeat.open_put_write_ids_size() > kOpenPutsMax) {
    return OutOfRange("heartbeat.open_put_write_ids",
                      static_cast<uint64_t>(heartbeat.open_put_write_ids_size()), kOpenPutsMax);
  }
  StoreHeartbeat command{.stream = stream, .quarantined_bytes = heartbeat.quarantined_bytes()};
  command.open_puts.reserve(static_cast<size_t>(heartbeat.open_put_write_ids_size()));
  for (const std::string& bytes : heartbeat.open_put_write_ids()) {
    KVMESH_ASSIGN_OR_RETURN(const WriteId id,
                            WriteId::FromBytes(bytes, "heartbeat.open_put_write_ids"));
    command.open_puts.push_back(id);
  }
  return command;
}

// One overload for each message to a store.
void Encode(const Welcome& welcome, v1::AttachStoreResponse* frame) {
  *frame->mutable_welcome()->mutable_incarnation() = EncodeIncarnation(welcome.incarnation);
}
void Encode(const DeleteSlab& command, v1::AttachStoreResponse* frame) {
  *frame->mutable_delete_slab()->mutable_slab() = EncodeSlab(command.name);
}
void Encode(const VerifySlab& command, v1::AttachStoreResponse* frame) {
  *frame->mutable_verify_slab()->mutable_slab() = EncodeSlab(command.name);
}
void Encode(const DescribeSlab& command, v1::AttachStoreResponse* frame) {
  *frame->mutable_describe_slab()->mutable_slab() = EncodeSlab(command.name);
}
void Encode(const RecordUse& command, v1::AttachStoreResponse* frame) {
  for (const SlabUse& use : command.uses) {
    v1::SlabUse& proto = *frame->mutable_record_use()->add_uses();
    *proto.mutable_slab() = EncodeSlab(use.name);
    proto.set_hit_count(use.hit_count);
    SetMillis(use.idle, proto.mutable_idle());
  }
}
void Encode(const Ping&, v1::AttachStoreResponse* frame) {
  frame->mutable_ping();
}

}  // namespace

absl::StatusOr<StoreHello> DecodeHello(const v1::StoreHello& hello, StreamId stream) {
  if (hello.protocol() != limits::kProtocolVersion) {
    return WithErrorInfo(
        absl::FailedPreconditionError(absl::StrCat("the store speaks protocol ", hello.protocol(),
                                                   ", the arbiter ", limits::kProtocolVersion)),
        ErrorInfo{.reason = std::string(reason::kProtocolMismatch)});
  }
  StoreHello command{.stream = stream,
                     .address = hello.address(),
                     .node = hello.node(),
                     .budget_bytes = hello.budget_bytes()};
  KVMESH_ASSIGN_OR_RETURN(command.uid, StoreUid::FromBytes(hello.store_id(), "hello.store_id"));
  KVMESH_ASSIGN_OR_RETURN(command.boot, InstanceId::FromBytes(hello.boot_id(), "hello.boot_id"));
  KVMESH_RETURN_IF_ERROR(CheckLabel(command.address, "hello.address", 1));
  KVMESH_RETURN_IF_ERROR(CheckLabel(command.node, "hello.node", 0));
  const std::optional<Tier> tier = TierFromName(hello.tier());
  if (!tier) return absl::InvalidArgumentError("hello.tier is none of ram, ram_file, disk");
  command.tier = *tier;
  constexpr uint64_t kBudgetMax = 1ULL << 60;
  if (command.budget_bytes == 0 || command.budget_bytes > kBudgetMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello.budget_bytes is ", command.budget_bytes, "; 1 to ", kBudgetMax));
  }
  if (hello.has_incarnation_seen()) {
    Incarnation seen{.number = hello.incarnation_seen().number()};
    // One above it must be a number too.
    constexpr uint64_t kNumberMax = 1ULL << 62;
    if (seen.number > kNumberMax) {
      return OutOfRange("hello.incarnation_seen.number", seen.number, kNumberMax);
    }
    KVMESH_ASSIGN_OR_RETURN(
        seen.id, InstanceId::FromBytes(hello.incarnation_seen().id(), "hello.incarnation_seen.id"));
    command.seen = seen;
  }
  return command;
}

absl::StatusOr<SlabFacts> DecodeFacts(const v1::SlabAnnouncement& announcement) {
  const v1::SlabInfo& info = announcement.slab();
  KVMESH_RETURN_IF_ERROR(CheckSizes(announcement));
  SlabFacts facts{
      .size_bytes = info.charged_bytes(),
      .token_count = info.token_count(),
      .text_bytes = static_cast<uint32_t>(info.text_bytes()),
      .payload_crc32c = info.payload_crc32c(),
      .block_hash = info.block_hash(),
      .tail_hash = info.tail_hash(),
      .model_layers = announcement.model_layers(),
      .ends_inside_character = announcement.ends_inside_character(),
      .hit_count = info.hit_count(),
      .idle = absl::Milliseconds(std::min<uint64_t>(info.idle().value(), uint64_t{1} << 52))};
  KVMESH_ASSIGN_OR_RETURN(facts.name, DecodeSlab(info.slab()));
  if (facts.model_layers != 0 && facts.name.layers.end > facts.model_layers) {
    return absl::InvalidArgumentError(absl::StrCat("slab.layers ends at ", facts.name.layers.end,
                                                   "; model_layers is ", facts.model_layers));
  }
  KVMESH_ASSIGN_OR_RETURN(facts.key_namespace, DecodeNamespace(info.namespace_()));
  KVMESH_ASSIGN_OR_RETURN(facts.tokens_sha256,
                          Sha256Digest::FromBytes(info.tokens_sha256(), "slab.tokens_sha256"));
  KVMESH_RETURN_IF_ERROR(DecodeCutPoints(info, &facts));
  return facts;
}

absl::StatusOr<Command> DecodeFrame(const v1::AttachStoreRequest& frame, StreamId stream) {
  switch (frame.frame_case()) {
    case v1::AttachStoreRequest::kInventory:
      return DecodeInventory(frame.inventory(), stream);
    case v1::AttachStoreRequest::kAnnounced: {
      SlabAnnounced announced{.stream = stream};
      KVMESH_ASSIGN_OR_RETURN(announced.slab, DecodeFacts(frame.announced()));
      return announced;
    }
    case v1::AttachStoreRequest::kRemoved:
      return DecodeRemoved(frame.removed(), stream);
    case v1::AttachStoreRequest::kVerified: {
      SlabVerified verified{.stream = stream, .sound = frame.verified().sound()};
      KVMESH_ASSIGN_OR_RETURN(verified.name, DecodeSlab(frame.verified().slab()));
      return verified;
    }
    case v1::AttachStoreRequest::kHeartbeat:
      return DecodeHeartbeat(frame.heartbeat(), stream);
    case v1::AttachStoreRequest::kPong:
      return StorePong{.stream = stream};
    default:
      return absl::InvalidArgumentError("a frame that is none, or a second hello");
  }
}

v1::AttachStoreResponse EncodeToStore(const ToStore& message) {
  v1::AttachStoreResponse frame;
  std::visit([&](const auto& part) { Encode(part, &frame); }, message.message);
  return frame;
}

}  // namespace kvmesh::meta

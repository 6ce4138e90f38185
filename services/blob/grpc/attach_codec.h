// The frames of a store's stream to the arbiter. What the arbiter sends is checked here: a bad
// command is InvalidArgument, which names field, value and limit, and ends the stream.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/blob/core/catalog.h"
#include "services/blob/core/incarnation.h"
#include "services/blob/core/store_news.h"
#include "services/blob/tiers/store_identity.h"

namespace kvmesh::blob {

inline constexpr size_t kInventoryPageMax = 1000;
inline constexpr int kUsesMax = 1000;
inline constexpr size_t kOpenPutsMax = 4096;

// ---- what the arbiter sends

struct Welcome {
  Incarnation incarnation;
};
struct DeleteCommand {
  SlabName name;
};
struct VerifyCommand {
  SlabName name;
};
struct DescribeCommand {
  SlabName name;
};
struct SlabUse {
  SlabName name;
  uint32_t hit_count = 0;
  absl::Duration idle;
};
struct RecordUseCommand {
  std::vector<SlabUse> uses;
};
struct PingCommand {};
struct TextCommand {
  uint64_t request = 0;
  SlabName name;
  uint64_t bytes_max = 0;
};
using ArbiterCommand = std::variant<Welcome, DeleteCommand, VerifyCommand, DescribeCommand,
                                    RecordUseCommand, PingCommand, TextCommand>;

absl::StatusOr<ArbiterCommand> DecodeCommand(const v1::AttachStoreResponse& frame);
// As a label of metrics.
absl::string_view NameOf(const ArbiterCommand& command);

// ---- what the store says

// What a store is, for as long as its process lives.
struct StoreFacts {
  std::string address;  // of its BlobService, as clients dial it
  std::string node;
  std::string tier;
  uint64_t budget_bytes = 0;
  InstanceId boot_id;
};

v1::StoreHello EncodeHello(const StoreFacts& facts, const StoreIdentity& identity);
v1::SlabAnnouncement EncodeAnnouncement(const SlabInfo& info, uint64_t now_s);
v1::StoreHeartbeat EncodeHeartbeat(const Usage& usage, const std::vector<WriteId>& open_puts);
v1::SlabRemoved EncodeGone(const SlabGone& gone);
v1::SlabVerified EncodeChecked(const SlabChecked& checked);
v1::SlabText EncodeText(const SlabText& text);

}  // namespace kvmesh::blob

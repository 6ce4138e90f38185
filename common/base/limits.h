// Every limit that both ends of the wire enforce (DESIGN §10). Larger values are refused at the
// edge, with the field, the value and the limit in the message.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace kvmesh::limits {

inline constexpr uint32_t kProtocolVersion = 1;

inline constexpr int kMessageBytesMax = 32 << 20;
inline constexpr uint64_t kChunkBytesMax = 8u << 20;  // hidden rows of one prefill chunk
inline constexpr uint32_t kChunkTokensMax = 512;
inline constexpr uint32_t kHistoryTokensMax = 1u << 20;
inline constexpr uint64_t kTextBytesMax = 8u << 20;
inline constexpr uint32_t kStopStringsMax = 16;
inline constexpr uint32_t kStopStringBytesMax = 256;
inline constexpr uint32_t kLogitBiasMax = 1024;
inline constexpr uint32_t kTopLogprobsMax = 20;
inline constexpr uint32_t kHopsMax = 64;
inline constexpr uint32_t kListPageMax = 1000;
inline constexpr uint32_t kLayersMax = 4096;
inline constexpr uint32_t kStatusBytesMax = 2048;
inline constexpr absl::Duration kKeepalive = absl::Seconds(20);
// ReserveRequest.room_wait: how long an arbiter makes room; it refuses a longer one.
inline constexpr absl::Duration kRoomWaitMax = absl::Seconds(10);

// At most this many unacknowledged prefill chunks, and decode frames, per hop.
inline constexpr uint32_t kPrefillCredit = 2;
inline constexpr uint32_t kDecodeCredit = 1;

inline constexpr uint32_t kUndeliveredTokensMax = 256;

// Tokens of one prefill chunk for a model of this hidden size; hidden rows travel as f32. At
// least 1.
inline constexpr uint32_t ChunkTokens(uint64_t hidden_size) {
  const uint64_t by_bytes = kChunkBytesMax / (std::max<uint64_t>(hidden_size, 1) * 4);
  return static_cast<uint32_t>(std::clamp<uint64_t>(by_bytes, 1, kChunkTokensMax));
}

}  // namespace kvmesh::limits

// Strong ids shared by all services. Random ids are 128 bits, digests 256 bits; both travel as raw
// bytes and are printed as lower-case hex.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/hex.h"

namespace kvmesh {

// A fixed number of raw bytes with a type of its own. A default-made one is all zero.
template <typename Tag, size_t kBytes>
class ByteId {
 public:
  static constexpr size_t kSize = kBytes;

  ByteId() = default;

  // InvalidArgument: `bytes` is not exactly kSize long; `field` is named in the message.
  static absl::StatusOr<ByteId> FromBytes(absl::string_view bytes, absl::string_view field);
  // InvalidArgument: not 2 * kSize hex digits; `field` is named in the message.
  static absl::StatusOr<ByteId> FromHex(absl::string_view hex, absl::string_view field);

  absl::string_view bytes() const {
    return absl::string_view(reinterpret_cast<const char*>(bytes_.data()), kBytes);
  }
  std::string ToHex() const { return HexEncode(bytes()); }
  bool is_zero() const { return *this == ByteId(); }
  uint8_t* mutable_data() { return bytes_.data(); }

  friend auto operator<=>(const ByteId&, const ByteId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const ByteId& id) {
    return H::combine(std::move(h), id.bytes_);
  }

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

namespace internal {
absl::Status WrongIdLength(absl::string_view field, size_t got, size_t wanted);
}  // namespace internal

template <typename Tag, size_t kBytes>
absl::StatusOr<ByteId<Tag, kBytes>> ByteId<Tag, kBytes>::FromBytes(absl::string_view bytes,
                                                                   absl::string_view field) {
  if (bytes.size() != kBytes) return internal::WrongIdLength(field, bytes.size(), kBytes);
  ByteId id;
  std::memcpy(id.bytes_.data(), bytes.data(), kBytes);
  return id;
}

template <typename Tag, size_t kBytes>
absl::StatusOr<ByteId<Tag, kBytes>> ByteId<Tag, kBytes>::FromHex(absl::string_view hex,
                                                                 absl::string_view field) {
  absl::StatusOr<std::string> bytes = HexDecode(hex);
  if (!bytes.ok()) return bytes.status();
  return FromBytes(*bytes, field);
}

using SessionId = ByteId<struct SessionIdTag, 16>;    // one generation
using InstanceId = ByteId<struct InstanceIdTag, 16>;  // one start of one process
using WriteId = ByteId<struct WriteIdTag, 16>;        // one reservation of a checkpoint write
using Sha256Digest = ByteId<struct Sha256Tag, 32>;

// Names the state of a session; grows with every re-prefill.
enum class SessionEpoch : uint64_t {};
// Names the stream of a session; grows with every reopened chain and never restarts.
enum class StreamAttempt : uint64_t {};

// Fills `data` from the operating system's generator.
void RandomBytes(uint8_t* data, size_t size);

template <typename Id>
Id RandomId() {
  Id id;
  RandomBytes(id.mutable_data(), Id::kSize);
  return id;
}

}  // namespace kvmesh

#include "common/rpc/chunk_codec.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <array>
#include <string>

namespace kvmesh::rpc {
namespace {

constexpr uint8_t kChunkTag = (2 << 3) | 2;  // field 2, length-delimited
constexpr size_t kPrefixBytesMax = 11;       // the tag and the longest varint

// Parts smaller than this are copied into a message: a reference to one would cost more.
constexpr size_t kReferredBytesMin = 1024;

// The chunk's length and where it begins; false when `bytes` begin with another field.
bool ReadPrefix(absl::string_view bytes, uint64_t* length, size_t* prefix_bytes) {
  if (bytes.empty() || static_cast<uint8_t>(bytes[0]) != kChunkTag) return false;
  uint64_t value = 0;
  for (size_t i = 1; i < bytes.size() && i < kPrefixBytesMax; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    value |= static_cast<uint64_t>(byte & 0x7F) << (7 * (i - 1));
    if ((byte & 0x80) != 0) continue;
    *length = value;
    *prefix_bytes = i + 1;
    return true;
  }
  return false;
}

// The first bytes of what the views hold together.
std::string Beginning(const std::vector<absl::string_view>& views, size_t bytes_max) {
  std::string bytes;
  for (absl::string_view view : views) {
    view = view.substr(0, bytes_max - bytes.size());
    bytes.append(view.data(), view.size());
    if (bytes.size() == bytes_max) break;
  }
  return bytes;
}

void RemovePrefix(std::vector<absl::string_view>* views, size_t bytes) {
  for (absl::string_view& view : *views) {
    const size_t step = std::min(bytes, view.size());
    view.remove_prefix(step);
    bytes -= step;
    if (bytes == 0) return;
  }
}

grpc::Slice PrefixOf(size_t size) {
  std::array<uint8_t, kPrefixBytesMax> prefix{kChunkTag};
  const uint8_t* end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size, prefix.data() + 1);
  return {prefix.data(), static_cast<size_t>(end - prefix.data())};
}

// Bytes of somebody else, who is `owner`.
template <typename T>
grpc::Slice Refer(absl::string_view bytes, const std::shared_ptr<T>& owner) {
  return {const_cast<char*>(bytes.data()), bytes.size(),
          [](void* held) { delete static_cast<std::shared_ptr<T>*>(held); },
          new std::shared_ptr<T>(owner)};
}

}  // namespace

bool ViewChunk(const grpc::ByteBuffer& message, std::vector<grpc::Slice>* slices,
               std::vector<absl::string_view>* chunk) {
  slices->clear();
  chunk->clear();
  if (!message.Valid() || !message.Dump(slices).ok()) return false;
  for (const grpc::Slice& slice : *slices) {
    chunk->emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  uint64_t length = 0;
  size_t prefix_bytes = 0;
  if (!ReadPrefix(Beginning(*chunk, kPrefixBytesMax), &length, &prefix_bytes) ||
      message.Length() - prefix_bytes != length) {
    return false;
  }
  RemovePrefix(chunk, prefix_bytes);
  return true;
}

grpc::ByteBuffer MakeChunkMessage(const std::shared_ptr<char[]>& data, size_t size) {
  const std::array<grpc::Slice, 2> slices = {PrefixOf(size),
                                             Refer(absl::string_view(data.get(), size), data)};
  return {slices.data(), slices.size()};
}

grpc::ByteBuffer MakeChunkMessage(absl::Span<const absl::string_view> parts,
                                  const std::shared_ptr<const void>& owner) {
  size_t size = 0;
  for (const absl::string_view part : parts) size += part.size();
  std::vector<grpc::Slice> slices;
  slices.reserve(parts.size() + 1);
  slices.push_back(PrefixOf(size));
  for (const absl::string_view part : parts) {
    slices.push_back(part.size() < kReferredBytesMin ? grpc::Slice(part.data(), part.size())
                                                     : Refer(part, owner));
  }
  return {slices.data(), slices.size()};
}

}  // namespace kvmesh::rpc

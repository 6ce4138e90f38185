#include "common/rpc/chunk_codec.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>
#include <utility>

namespace kvmesh::rpc {
namespace {

constexpr uint8_t kChunkTag = (2 << 3) | 2;  // field 2, length-delimited
constexpr size_t kPrefixBytesMax = 11;       // the tag and the longest varint

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

}  // namespace

bool ViewChunk(const grpc::ByteBuffer& message, std::vector<grpc::Slice>* slices,
               std::vector<absl::string_view>* chunk) {
  slices->clear();
  chunk->clear();
  if (!message.Valid() || !message.Dump(slices).ok() || slices->empty()) return false;
  const grpc::Slice& first = slices->front();
  uint64_t length = 0;
  size_t prefix_bytes = 0;
  if (!ReadPrefix(absl::string_view(reinterpret_cast<const char*>(first.begin()), first.size()),
                  &length, &prefix_bytes) ||
      message.Length() - prefix_bytes != length) {
    return false;
  }
  for (const grpc::Slice& slice : *slices) {
    chunk->emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  chunk->front().remove_prefix(prefix_bytes);
  return true;
}

grpc::ByteBuffer MakeChunkMessage(std::shared_ptr<char[]> data, size_t size) {
  std::array<uint8_t, kPrefixBytesMax> prefix{kChunkTag};
  const uint8_t* end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size, prefix.data() + 1);
  char* bytes = data.get();
  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(prefix.data(), static_cast<size_t>(end - prefix.data())),
      grpc::Slice(
          bytes, size, [](void* owner) { delete static_cast<std::shared_ptr<char[]>*>(owner); },
          new std::shared_ptr<char[]>(std::move(data)))};
  return {slices.data(), slices.size()};
}

}  // namespace kvmesh::rpc

// Messages of the form `oneof { Header header = 1; bytes chunk = 2; }` without copying the chunk:
// the bytes go from and to gRPC's own slices. Anything but a lone chunk is left to protobuf.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/rpc/parsed.h"

namespace kvmesh::rpc {

// The chunk's bytes as views of `slices`, which holds them. False: the message is not exactly one
// field 2 with bytes; the caller parses it.
bool ViewChunk(const grpc::ByteBuffer& message, std::vector<grpc::Slice>* slices,
               std::vector<absl::string_view>* chunk);

// A message with the first `size` bytes of `data` as its chunk; copies nothing. The data is shared
// with gRPC, which lets it go once it is sent.
grpc::ByteBuffer MakeChunkMessage(const std::shared_ptr<char[]>& data, size_t size);
// Likewise with `parts`, one behind another, which `owner` keeps as they are. Tiny ones are copied.
grpc::ByteBuffer MakeChunkMessage(absl::Span<const absl::string_view> parts,
                                  const std::shared_ptr<const void>& owner);

template <typename Message>
bool ParseMessage(grpc::ByteBuffer* buffer, Message* message) {
  return grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(buffer, message).ok();
}

// Likewise, of a request that a raw method was sent. InvalidArgument: as of WhyUnparsed.
template <typename Message>
absl::Status ParseRequest(grpc::ByteBuffer* buffer, Message* request) {
  return ParseMessage(buffer, request) ? absl::OkStatus() : WhyUnparsed(*request);
}

template <typename Message>
grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer buffer;
  bool own_buffer = false;
  // Fails only beyond 2 GiB; an empty message is then what the peer refuses.
  static_cast<void>(
      grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &buffer, &own_buffer));
  return buffer;
}

}  // namespace kvmesh::rpc

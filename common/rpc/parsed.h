// Requests that can say what is wrong with them. gRPC answers a request that does not parse with an
// empty UNIMPLEMENTED, before any code of ours runs, and ends a stream as if its caller had gone;
// one string that is not UTF-8 is enough. A method that takes Parsed<Request> gets such a request
// all the same, with the reason (see checked_service.h).
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace kvmesh::rpc {

template <typename Message>
struct Parsed {
  Message message;      // as far as it could be read
  absl::Status status;  // OK, or as of WhyUnparsed
};

// Why a message did not parse, told from what its parser has left in it. InvalidArgument: the first
// string that is not UTF-8 is named by its path ("options.stop[1]"); otherwise the bytes are none
// of a message of this type.
absl::Status WhyUnparsed(const google::protobuf::Message& message);

}  // namespace kvmesh::rpc

// How gRPC reads one: always with success.
template <typename Message>
class grpc::SerializationTraits<kvmesh::rpc::Parsed<Message>> {
 public:
  static Status Deserialize(ByteBuffer* buffer, kvmesh::rpc::Parsed<Message>* parsed) {
    const Status read = SerializationTraits<Message>::Deserialize(buffer, &parsed->message);
    parsed->status = read.ok() ? absl::OkStatus() : kvmesh::rpc::WhyUnparsed(parsed->message);
    return Status::OK;
  }
};

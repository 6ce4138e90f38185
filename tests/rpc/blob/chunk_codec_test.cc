#include "common/rpc/chunk_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kvmesh/v1/blob.pb.h"

namespace kvmesh::rpc {
namespace {

grpc::ByteBuffer BufferOf(const std::vector<std::string>& parts) {
  std::vector<grpc::Slice> slices;
  slices.reserve(parts.size());
  for (const std::string& part : parts) slices.emplace_back(part);
  return {slices.data(), slices.size()};
}

std::string Joined(const std::vector<absl::string_view>& views) {
  std::string bytes;
  for (absl::string_view view : views) bytes.append(view.data(), view.size());
  return bytes;
}

TEST(ChunkCodec, AChunkIsFoundHoweverItsMessageIsCut) {
  v1::PutRequest request;
  request.set_chunk(std::string(300, 'c') + "end");
  const std::string message = request.SerializeAsString();
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> chunk;
  for (size_t first = 0; first <= message.size(); ++first) {
    for (size_t second : {first, std::min(first + 1, message.size())}) {
      const auto buffer = BufferOf({message.substr(0, first), message.substr(first, second - first),
                                    message.substr(second)});
      ASSERT_TRUE(ViewChunk(buffer, &slices, &chunk)) << first << " " << second;
      EXPECT_EQ(Joined(chunk), request.chunk());
    }
  }
}

TEST(ChunkCodec, AnythingButALoneChunkIsLeftToProtobuf) {
  v1::PutRequest request;
  request.set_chunk("chunk");
  const std::string message = request.SerializeAsString();
  v1::PutRequest header;
  header.mutable_header()->set_size_bytes(1);
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> chunk;
  for (const std::string& other :
       {std::string(), message.substr(0, 1), message.substr(0, 2),
        message.substr(0, message.size() - 1), message + "x", message + message,
        header.SerializeAsString(), header.SerializeAsString() + message,
        std::string("\x12") + std::string(20, '\xff')}) {
    EXPECT_FALSE(ViewChunk(BufferOf({other}), &slices, &chunk));
  }
  EXPECT_FALSE(ViewChunk(grpc::ByteBuffer(), &slices, &chunk));
}

TEST(ChunkCodec, PartsBecomeOneChunkAndTheirOwnerIsLetGoWithTheMessage) {
  struct Owned {
    std::string large = std::string(5000, 'l');
    std::string small = "small";
    std::string empty;
  };
  const auto owner = std::make_shared<Owned>();
  {
    grpc::ByteBuffer message =
        MakeChunkMessage({owner->large, owner->small, owner->empty, owner->large}, owner);
    EXPECT_GT(owner.use_count(), 1);
    v1::PutRequest parsed;
    ASSERT_TRUE(ParseMessage(&message, &parsed));
    EXPECT_EQ(parsed.chunk(), owner->large + owner->small + owner->large);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace kvmesh::rpc

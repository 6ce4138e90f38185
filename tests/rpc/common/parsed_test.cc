#include "common/rpc/parsed.h"

#include <gtest/gtest.h>

#include <string>

#include "kvmesh/v1/router.pb.h"
#include "kvmesh/v1/shard.pb.h"

namespace kvmesh::rpc {
namespace {

template <typename Message>
Parsed<Message> Read(const std::string& bytes) {
  grpc::Slice slice(bytes);
  grpc::ByteBuffer buffer(&slice, 1);
  Parsed<Message> parsed;
  EXPECT_TRUE(grpc::SerializationTraits<Parsed<Message>>::Deserialize(&buffer, &parsed).ok());
  return parsed;
}

// The bytes of `message` with the first "BAD" in it made something that is no UTF-8.
std::string Spoilt(const google::protobuf::Message& message) {
  std::string bytes = message.SerializeAsString();
  bytes.replace(bytes.find("BAD"), 3, "\xc3(\xff");
  return bytes;
}

TEST(Parsed, ASoundMessageIsTheOneThatWasSent) {
  v1::TokenizeRequest request;
  request.set_text("caf\xc3\xa9");
  const auto parsed = Read<v1::TokenizeRequest>(request.SerializeAsString());
  EXPECT_TRUE(parsed.status.ok());
  EXPECT_EQ(parsed.message.text(), request.text());
}

TEST(Parsed, TextThatIsNotUtf8IsNamedByItsPath) {
  v1::TokenizeRequest plain;
  plain.set_text("BAD");
  v1::GenerateRequest choice;
  choice.set_text("BAD");
  v1::GenerateRequest repeated;
  repeated.set_text("fine");
  repeated.mutable_options()->add_stop("fine");
  repeated.mutable_options()->add_stop("BAD");
  v1::ChatRequest nested;
  nested.mutable_input()->add_messages()->set_role("user");
  nested.mutable_input()->mutable_messages(0)->set_content("BAD");
  v1::ForwardRequest frame;
  frame.mutable_open()->add_hops()->set_address("BAD");
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_EQ(message(Read<v1::TokenizeRequest>(Spoilt(plain)).status), "text is not UTF-8");
  EXPECT_EQ(message(Read<v1::GenerateRequest>(Spoilt(choice)).status), "text is not UTF-8");
  EXPECT_EQ(message(Read<v1::GenerateRequest>(Spoilt(repeated)).status),
            "options.stop[1] is not UTF-8");
  EXPECT_EQ(message(Read<v1::ChatRequest>(Spoilt(nested)).status),
            "input.messages[0].content is not UTF-8");
  EXPECT_EQ(message(Read<v1::ForwardRequest>(Spoilt(frame)).status),
            "open.hops[0].address is not UTF-8");
}

TEST(Parsed, BytesThatAreNoMessageAreSaidToBeNone) {
  for (const std::string& bytes : {std::string("\x0a\x7fshort"), std::string("\xff")}) {
    const absl::Status status = Read<v1::TokenizeRequest>(bytes).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("kvmesh.v1.TokenizeRequest"), absl::string_view::npos)
        << status;
  }
}

TEST(Parsed, RawBytesNeedNotBeText) {
  v1::GenerateRequest request;
  request.set_text("fine");
  request.mutable_options()->set_parent_key(std::string(32, '\xff'));
  EXPECT_TRUE(Read<v1::GenerateRequest>(request.SerializeAsString()).status.ok());
}

}  // namespace
}  // namespace kvmesh::rpc

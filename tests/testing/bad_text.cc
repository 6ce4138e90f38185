#include "tests/testing/bad_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/raw_call.h"

namespace kvmesh::testing {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

using FieldPath = std::vector<const FieldDescriptor*>;

constexpr size_t kDepthMax = 8;
constexpr char kGoodText[] = "BAD";
constexpr char kBadText[] = "\xff\xfe\xfd";  // as long

void CollectStrings(const Descriptor& message, FieldPath& path, std::vector<FieldPath>* found) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor* field = message.field(i);
    path.push_back(field);
    if (field->type() == FieldDescriptor::TYPE_STRING) found->push_back(path);
    if (field->type() == FieldDescriptor::TYPE_MESSAGE && path.size() < kDepthMax) {
      CollectStrings(*field->message_type(), path, found);
    }
    path.pop_back();
  }
}

// A request with nothing but text at `path` in it, which is named in `name`.
std::string BytesWith(const Descriptor& type, const FieldPath& path, std::string* name) {
  const std::unique_ptr<Message> request(
      MessageFactory::generated_factory()->GetPrototype(&type)->New());
  Message* message = request.get();
  for (const FieldDescriptor* field : path) {
    absl::StrAppend(name, name->empty() ? "" : ".", field->name(),
                    field->is_repeated() ? "[0]" : "");
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      message = field->is_repeated() ? reflection.AddMessage(message, field)
                                     : reflection.MutableMessage(message, field);
    } else if (field->is_repeated()) {
      reflection.AddString(message, field, kGoodText);
    } else {
      reflection.SetString(message, field, kGoodText);
    }
  }
  std::string bytes = request->SerializeAsString();
  const size_t at = bytes.find(kGoodText);
  EXPECT_NE(at, std::string::npos) << *name;
  if (at != std::string::npos) bytes.replace(at, sizeof(kGoodText) - 1, kBadText);
  return bytes;
}

}  // namespace

absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes) {
  rpc::RawCall call(channel, method, absl::Seconds(60));
  const grpc::Slice slice(bytes);
  call.Write(grpc::ByteBuffer(&slice, 1));
  call.WritesDone();
  grpc::ByteBuffer ignored;
  while (call.Read(&ignored)) {
  }
  return call.Finish();
}

void ExpectBadTextIsRefused(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& service) {
  const ServiceDescriptor* methods = DescriptorPool::generated_pool()->FindServiceByName(service);
  ASSERT_NE(methods, nullptr) << service;
  int tried = 0;
  for (int i = 0; i < methods->method_count(); ++i) {
    const MethodDescriptor& method = *methods->method(i);
    std::vector<FieldPath> paths;
    FieldPath path;
    CollectStrings(*method.input_type(), path, &paths);
    for (const FieldPath& each : paths) {
      std::string name;
      const std::string bytes = BytesWith(*method.input_type(), each, &name);
      const absl::Status status =
          CallRaw(channel, absl::StrCat("/", service, "/", method.name()), bytes);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << method.name() << ": " << status;
      EXPECT_EQ(std::string(status.message()), absl::StrCat(name, " is not UTF-8"))
          << method.name();
      ++tried;
    }
  }
  EXPECT_GT(tried, 0) << service;
}

}  // namespace kvmesh::testing

#include "common/rpc/parsed.h"

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace kvmesh::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string FindBadText(const Message& message);

// The path of a bad string within one value of a field, from the field's own name on; empty: none.
// `index`: of a repeated field, else -1.
std::string FindInValue(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  std::string path(field.name());
  if (index >= 0) absl::StrAppend(&path, "[", index, "]");
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const std::string below =
        FindBadText(index < 0 ? reflection.GetMessage(message, &field)
                              : reflection.GetRepeatedMessage(message, &field, index));
    return below.empty() ? "" : absl::StrCat(path, ".", below);
  }
  std::string scratch;
  const std::string& text =
      index < 0 ? reflection.GetStringReference(message, &field, &scratch)
                : reflection.GetRepeatedStringReference(message, &field, index, &scratch);
  return IsUtf8(text) ? "" : path;
}

// The path of the first string that is not UTF-8. As deep as messages nest in the protos, which is
// all that a parser accepts.
std::string FindBadText(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() != FieldDescriptor::TYPE_STRING &&
        field->type() != FieldDescriptor::TYPE_MESSAGE) {
      continue;
    }
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string path = FindInValue(message, *field, field->is_repeated() ? i : -1);
      if (!path.empty()) return path;
    }
  }
  return "";
}

}  // namespace

absl::Status WhyUnparsed(const Message& message) {
  const std::string path = FindBadText(message);
  if (!path.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is not UTF-8"));
  return absl::InvalidArgumentError(
      absl::StrCat("the request is not a ", message.GetTypeName(), ": it cannot be parsed"));
}

}  // namespace kvmesh::rpc

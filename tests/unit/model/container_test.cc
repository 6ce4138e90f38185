// JSON, GGUF and safetensors: what the malformed files of the fixtures leave out.
#include <gtest/gtest.h>

#include <cmath>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/gguf.h"
#include "common/model/json.h"
#include "common/model/printable.h"
#include "common/model/safetensors.h"
#include "tests/unit/model/model_builder.h"

namespace kvmesh::model {
namespace {

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(ParseJson, NestingUpToTheLimitIsReadAndOneMoreIsRefused) {
  EXPECT_TRUE(ParseJson(Nested(8), {.depth_max = 8}).ok());
  const auto refused = ParseJson(Nested(9), {.depth_max = 8});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "deep"));
  EXPECT_FALSE(ParseJson(std::string(1 << 20, '[')).ok());
}

TEST(ParseJson, ValuesUpToTheLimitAreReadAndOneMoreIsRefused) {
  EXPECT_TRUE(ParseJson("[1,2,3]", {.values_max = 4}).ok());
  EXPECT_FALSE(ParseJson("[1,2,3,4]", {.values_max = 4}).ok());
}

TEST(ParseJson, ADuplicateKeyIsNamedAtAnyDepth) {
  const auto refused = ParseJson(R"({"a":{"b":1,"c":2,"b":3}})");
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "duplicate key b")) << refused.status();
  EXPECT_TRUE(ParseJson(R"({"a":{"b":1},"b":{"b":2}})").ok());
}

TEST(ParseJson, WhatIsNotJsonIsRefused) {
  for (const char* text : {"", " ", "{", "{}x", "{\"a\":NaN}", "{\"a\":Infinity}", "[1e999]",
                           "\xff", "{\"a\":\"\xff\"}", "{\"a\":01}", "{\"a\":1,}", "nul"}) {
    EXPECT_EQ(ParseJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(JsonObject, ValuesOfAnotherTypeOrOutOfRangeAreRefusedByKey) {
  const auto json = *ParseJson(
      R"({"s":"2","f":2.5,"n":-1,"big":18446744073709551616,"two":2,"null":null,"b":true,"z":0})");
  const JsonObject object(json, "block.");
  for (const char* key : {"s", "f", "n", "big", "null", "absent", "b"}) {
    const auto refused = object.Uint(key, 0, UINT64_MAX);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_TRUE(absl::StrContains(refused.status().message(), absl::StrCat("block.", key))) << key;
  }
  EXPECT_EQ(*object.Uint("two", 2, 2), 2u);
  EXPECT_FALSE(object.Uint("two", 3, 9).ok());
  EXPECT_FALSE(object.Uint("two", 0, 1).ok());
  EXPECT_EQ(*object.UintOr("null", 7, 0, 9), 7u);
  EXPECT_EQ(*object.Positive("f"), 2.5);
  for (const char* key : {"n", "z", "s", "b"}) EXPECT_FALSE(object.PositiveOr(key, 1).ok()) << key;
  EXPECT_FALSE(object.BoolOr("two", true).ok());
  EXPECT_FALSE(object.String("two").ok());
  EXPECT_FALSE(object.Strings("s").ok());
}

TEST(Printable, BytesOfAFileCannotBreakAMessage) {
  EXPECT_EQ(Printable("a\nb\xff"), "a\\x0ab\\xff");
  EXPECT_EQ(Printable(std::string(1000, 'a')).size(), 103u);
}

TEST(Gguf, ValuesAreReadBackByType) {
  GgufBuilder builder = TinyGguf();
  builder.Set("x.i8", GgufValueType::kInt8, Raw<int8_t>(-3))
      .Set("x.u64", GgufValueType::kUint64, Raw<uint64_t>(UINT64_MAX))
      .Set("x.f64", GgufValueType::kFloat64, Raw(0.25))
      .Set("x.bool", GgufValueType::kBool, Raw<uint8_t>(1))
      .Set("x.ints", GgufValueType::kArray,
           Raw<uint32_t>(5) + Raw<uint64_t>(2) + Raw<int32_t>(-1) + Raw<int32_t>(7))
      .Set("x.empty", GgufValueType::kArray, Raw<uint32_t>(6) + Raw<uint64_t>(0))
      .SetFloat("x.nan", NAN);
  const std::string bytes = builder.Bytes();
  const auto file = GgufFile::Parse(AsBytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->GetUint("x.i8", 0, UINT64_MAX).ok());
  EXPECT_EQ(*file->GetUint("x.u64", 0, UINT64_MAX), UINT64_MAX);
  EXPECT_FALSE(file->GetUint("x.u64", 0, UINT64_MAX - 1).ok());
  EXPECT_EQ(*file->GetFloat("x.f64"), 0.25);
  EXPECT_FALSE(file->GetFloat("x.nan").ok());
  EXPECT_TRUE(*file->GetBool("x.bool"));
  EXPECT_EQ(*file->GetInts("x.ints"), (std::vector<int64_t>{-1, 7}));
  EXPECT_TRUE(file->GetFloats("x.empty")->empty());
  EXPECT_EQ(file->GetStrings("tokenizer.ggml.tokens")->at(3), "d");
  EXPECT_TRUE(absl::IsNotFound(file->GetString("absent").status()));
  EXPECT_FALSE(file->GetString("x.bool").ok());
  EXPECT_EQ(file->tensors().size(), 21u);
}

TEST(Gguf, AnyCutOfASoundFileIsRefusedOrSoundAndNeverReadsBeyond) {
  const std::string bytes = TinyGguf().Bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);  // its own block: a sanitizer sees a read beyond
    EXPECT_FALSE(GgufFile::Parse(AsBytes(cut)).ok()) << size;
  }
  EXPECT_TRUE(GgufFile::Parse(AsBytes(bytes)).ok());
}

TEST(Gguf, ANameWithANulIsRefused) {
  GgufBuilder tensor = TinyGguf();
  tensor.AddTensor(std::string("a\0b", 3), {4});
  EXPECT_FALSE(GgufFile::Parse(AsBytes(tensor.Bytes())).ok());
  GgufBuilder key = TinyGguf();
  key.SetUint32(std::string("a\0b", 3), 4);
  EXPECT_FALSE(GgufFile::Parse(AsBytes(key.Bytes())).ok());
}

TEST(Gguf, ATypeOfTheFormatThatIsNotSupportedIsRefusedByName) {
  GgufBuilder builder = TinyGguf();
  builder.tensors()["output.weight"].type = 16;
  const std::string bytes = builder.Bytes();
  const auto refused = GgufFile::Parse(AsBytes(bytes));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "output.weight")) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "iq2_xxs")) << refused.status();
}

TEST(Safetensors, AnyCutOfASoundFileIsRefused) {
  const std::string bytes = SafetensorsBytes({{"a", {"F32", {2, 2}}}, {"b", {"BF16", {3}}}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseSafetensors(AsBytes(bytes.substr(0, size))).ok()) << size;
  }
  const auto tensors = ParseSafetensors(AsBytes(bytes));
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at(0).type, WeightType::kF32);
  EXPECT_EQ(tensors->at(1).shape, std::vector<uint64_t>{3});
  EXPECT_EQ(tensors->at(1).data.size(), 6u);
}

TEST(Safetensors, TheOrderOfTheHeaderNeedNotBeThatOfTheData) {
  const std::string header = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const std::string bytes = Raw<uint64_t>(header.size()) + header + "12345678";
  EXPECT_TRUE(ParseSafetensors(AsBytes(bytes)).ok());
}

TEST(Safetensors, TheSmallFileThatClaimsAMillionNumbersIsRefusedByTensor) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})";
  const std::string bytes = Raw<uint64_t>(header.size()) + header + "1234";
  const auto refused = ParseSafetensors(AsBytes(bytes));
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "tensor w")) << refused.status();
}

TEST(Safetensors, WhatIsNoWeightFileAtAllIsCalledByItsName) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  EXPECT_TRUE(absl::StrContains(ParseSafetensors(AsBytes(pointer)).status().message(), "Git LFS"));
  EXPECT_TRUE(absl::StrContains(GgufFile::Parse(AsBytes(pointer)).status().message(), "Git LFS"));
  const std::string page = "\n<!DOCTYPE html><html></html>";
  EXPECT_TRUE(absl::StrContains(GgufFile::Parse(AsBytes(page)).status().message(), "HTML"));
}

}  // namespace
}  // namespace kvmesh::model

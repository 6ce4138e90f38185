// The reference answers of tests/data/text/keys: content keys and CRC32C.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/hex.h"
#include "common/slab/content_key.h"
#include "common/slab/crc32c.h"
#include "tests/testing/test_data.h"

namespace kvmesh::slab {
namespace {

using Json = nlohmann::json;

// "<name>_hex", or "<name>_repeat" {unit_hex, count}.
std::string BytesOf(const Json& object, const std::string& name) {
  if (object.contains(name + "_hex")) return *HexDecode(object[name + "_hex"].get<std::string>());
  const Json& repeat = object.at(name + "_repeat");
  const std::string unit = *HexDecode(repeat["unit_hex"].get<std::string>());
  std::string bytes;
  for (size_t i = 0; i < repeat["count"].get<size_t>(); ++i) bytes += unit;
  return bytes;
}

KeyNamespace NamespaceOf(const Json& object) {
  return {.model_fp = BytesOf(object, "model_fp"),
          .quant = BytesOf(object, "quant"),
          .ctx_params = BytesOf(object, "ctx_params")};
}

int RunKeys(const Json& file) {
  int cases = 0;
  for (const Json& entry : file["cases"]) {
    const Sha256Digest key = ContentKey(NamespaceOf(entry), BytesOf(entry, "text"));
    EXPECT_EQ(key.ToHex(), entry["key_hex"].get<std::string>()) << entry["name"];
    ++cases;
  }
  const std::string text = file["prefix_text_utf8"].get<std::string>();
  const Json& fields = file["prefix_fields_hex"];
  const auto field = [&](const char* name) { return *HexDecode(fields[name].get<std::string>()); };
  ContentKeyHasher hasher(KeyNamespace{
      .model_fp = field("model_fp"), .quant = field("quant"), .ctx_params = field("ctx_params")});
  size_t hashed = 0;
  for (const Json& prefix : file["prefixes"]) {
    const size_t length = prefix["prefix_bytes"].get<size_t>();
    EXPECT_GE(length, hashed);
    hasher.Update(absl::string_view(text).substr(hashed, length - hashed));
    hashed = length;
    EXPECT_EQ(hasher.Key().ToHex(), prefix["key_hex"].get<std::string>()) << length;
    ++cases;
  }
  return cases;
}

std::string Hex(uint32_t crc) {
  char value[9];
  std::snprintf(value, sizeof(value), "%08x", crc);
  return value;
}

int RunCrcs(const Json& file) {
  int cases = 0;
  for (const Json& entry : file["cases"]) {
    EXPECT_EQ(Hex(Crc32c(BytesOf(entry, "data"))), entry["crc32c"].get<std::string>())
        << entry["name"];
    ++cases;
  }
  const Json& composition = file["composition"];
  const std::string a = BytesOf(composition, "a");
  const std::string b = BytesOf(composition, "b");
  EXPECT_EQ(Hex(Crc32c(a)), composition["crc_a"].get<std::string>());
  EXPECT_EQ(Hex(ExtendCrc32c(Crc32c(a), b)), composition["crc_ab"].get<std::string>());
  EXPECT_EQ(Hex(CombineCrc32c(Crc32c(a), Crc32c(b), b.size())),
            composition["crc_ab"].get<std::string>());
  return cases + 1;
}

TEST(SlabGolden, KeysAndCrcs) {
  const auto folder = testing::TestDataRoot() / "text" / "keys";
  if (testing::FolderIsAbsent(folder)) return;
  int cases = 0;
  for (const auto& path : testing::ListFolder(folder)) {
    const Json file = Json::parse(testing::ReadWholeFile(path));
    const std::string schema = file["schema"].get<std::string>();
    if (schema == "kvmesh.text.key.v1") {
      cases += RunKeys(file);
    } else if (schema == "kvmesh.text.crc32c.v1") {
      cases += RunCrcs(file);
    } else {
      ADD_FAILURE() << path << ": unknown schema " << schema;
    }
  }
  std::printf("%d cases ran\n", cases);
  EXPECT_GT(cases, 0);
}

}  // namespace
}  // namespace kvmesh::slab

// Pins the bytes of the format: what is written today must be readable, and be written, for ever.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hex.h"
#include "common/slab/crc32c.h"
#include "common/slab/reader.h"
#include "common/slab/writer.h"
#include "tests/testing/random_slab.h"

namespace kvmesh::slab {
namespace {

SlabMeta GoldenMeta() {
  SlabMeta meta;
  meta.header = {.quant_bits = 16,
                 .reason = SaveReason::kFinish,
                 .hit_count = 5,
                 .context_size = 2048,
                 .layers = {2, 4},
                 .creation_time_s = 1700000000,
                 .last_used_time_s = 1700000060};
  meta.key_namespace = {.model_fp = std::string(32, '\x11'),
                        .quant = "w=f16;kv=f16",
                        .ctx_params = std::string(32, '\x22')};
  meta.hostname = "host-a";
  meta.writer_version = "0.1.0";
  meta.token_ids = {1, 2, 3};
  meta.text = "Hi!";
  meta.last_output = OutputRow{.dtype = DType::kF32, .bytes = std::string("\0\0\x80\x3f", 4)};
  meta.write_id = *WriteId::FromBytes(std::string(16, '\x33'), "write_id");
  meta.cut_points = {{.token_count = 2, .text_bytes = 2}};
  return meta;
}

// The slab of docs/kvc-format.md: two layers, three tokens, one value a row.
std::string GoldenSlab() {
  const std::string kv = *HexDecode(
      "01000200030004000500"
      "0600");
  const std::string recurrent = *HexDecode("0000803f00000040");
  auto writer = SlabWriter::Create(GoldenMeta());
  EXPECT_TRUE(writer.ok());
  EXPECT_TRUE(writer->AddRegion(StateKind::kKeyValue, DType::kF16, 0, {kv}).ok());
  EXPECT_TRUE(writer->AddRegion(StateKind::kRecurrent, DType::kF32, 3, {recurrent}).ok());
  return writer->Finish()->ToString();
}

// Hex of the file with runs of zeros that reach a multiple of 4096 left out.
std::string PinnedHex(const std::string& bytes, const SlabMeta& meta) {
  const auto part = [&](uint64_t at, uint64_t length) {
    return HexEncode(bytes.substr(at, length));
  };
  const uint64_t payload = meta.payload_offset();
  return absl::StrCat(part(0, 48), " ", part(48, 8), " ", part(56, meta.meta_bytes), " ",
                      part(payload, 12), " ", part(payload + 4096, 8), " ",
                      part(bytes.size() - 24, 24));
}

TEST(SlabFormat, TheGoldenSlabIsWrittenByteForByte) {
  const std::string bytes = GoldenSlab();
  const MemorySource source(bytes);
  const auto reader = SlabReader::Open(source);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE(reader->VerifyPayload().ok());
  EXPECT_EQ(bytes.size(), 4096U + 2 * 4096U + 24U);
  EXPECT_EQ(PinnedHex(bytes, reader->meta()),
            "4b564302100300000300000005000000000800000200040000f15365000000003cf15365000000000020"
            "000000000000 83010000732501cf 012000000011111111111111111111111111111111111111111111"
            "11111111111111111111030c000000773d6631363b6b763d663136042000000022222222222222222222"
            "222222222222222222222222222222222222222222220506000000686f73742d610605000000302e312e"
            "30080400000003000000090c0000000100000002000000030000000a030000004869210b050000000100"
            "00803f0c3400000001020000000000000000000000000c000000000000001ada6d840301030000000010"
            "0000000000000800000000000000dad8d40d0d08000000e83694210fbc095f0e20000000cc2386defa14"
            "f72a499a967c8ddcf6db3c63e6f3decafa80c1717936f3ea1ed70f200000004636993d3e1da4e9d6b8f8"
            "7b79e8f7c6d018580d52661950eabc3845c5897a4d101000000033333333333333333333333333333333"
            "11300000000200000002000000e83694210fbc095fa7de16399b45f3e5c8ee7ffa289c06782978f9046e"
            "320d63b108b423d4975ab212080000001ada6d84dad8d40d 010002000300040005000600 0000803f00"
            "000040 00100000000000000020000000000000b2d59d0126ec64d4");
}

// Adds or replaces TLVs and repairs the CRCs, so that only the rule under test can refuse.
absl::Status ReadWithTlvs(const std::string& tlvs) {
  const std::string good = GoldenSlab();
  const MemorySource source(good);
  const auto reader = SlabReader::Open(source);
  if (!reader.ok()) return reader.status();
  Head head{.header = reader->meta().header,
            .meta_bytes = static_cast<uint32_t>(tlvs.size()),
            .meta_crc32c = Crc32c(tlvs)};
  SlabMeta meta = reader->meta();
  meta.meta_bytes = head.meta_bytes;
  std::string bytes = EncodeHead(head) + tlvs;
  bytes.resize(meta.payload_offset());
  bytes += good.substr(reader->meta().payload_offset(), meta.header.payload_bytes);
  bytes += EncodeTrailer(bytes, meta);
  const MemorySource changed(bytes);
  return SlabReader::Open(changed).status();
}

std::string GoldenTlvs() {
  const std::string good = GoldenSlab();
  const MemorySource source(good);
  return good.substr(56, SlabReader::Open(source)->meta().meta_bytes);
}

TEST(SlabFormat, UnknownTagsAreSkipped) {
  EXPECT_TRUE(ReadWithTlvs(GoldenTlvs()).ok());
  for (const char tag : {'\x02', '\x14', '\x7F', '\xFF'}) {
    const std::string unknown = std::string(1, tag) + std::string("\3\0\0\0abc", 7);
    EXPECT_TRUE(ReadWithTlvs(GoldenTlvs() + unknown).ok());
    EXPECT_TRUE(ReadWithTlvs(unknown + GoldenTlvs() + unknown).ok());
  }
}

TEST(SlabFormat, TheModelsNumberOfLayersReachesBeyondTheSlabs) {
  const std::string good = GoldenSlab();
  const MemorySource source(good);
  const SlabMeta meta = SlabReader::Open(source)->meta();
  const auto with_layers = [&](uint32_t layers) {
    SlabMeta told = meta;
    told.model_layers = layers;
    return ReadWithTlvs(EncodeTlvs(told));
  };
  EXPECT_EQ(meta.model_layers, 0);  // a slab need not say
  EXPECT_TRUE(with_layers(meta.header.layers.end).ok());
  EXPECT_TRUE(with_layers(4096).ok());
  EXPECT_FALSE(with_layers(4097).ok());
  EXPECT_FALSE(with_layers(meta.header.layers.end - 1).ok());
  EXPECT_FALSE(ReadWithTlvs(GoldenTlvs() + std::string("\x13\3\0\0\0abc", 8)).ok());
  SlabMeta told = meta;
  told.model_layers = 0x0102;
  EXPECT_EQ(EncodeTlvs(told), GoldenTlvs() + std::string("\x13\4\0\0\0\2\1\0\0", 9));
}

TEST(SlabFormat, AMissingADoubledOrABrokenTlvIsRefused) {
  const std::string tlvs = GoldenTlvs();
  size_t at = 0;
  int required = 0;
  while (at < tlvs.size()) {
    const auto tag = static_cast<unsigned char>(tlvs[at]);
    const size_t length =
        static_cast<unsigned char>(tlvs[at + 1]) + 256 * static_cast<unsigned char>(tlvs[at + 2]);
    const std::string one = tlvs.substr(at, 5 + length);
    const bool optional = tag == 0x05 || tag == 0x06 || tag == 0x0B || tag == 0x11;
    EXPECT_EQ(ReadWithTlvs(tlvs.substr(0, at) + tlvs.substr(at + one.size())).ok(), optional)
        << int{tag};
    EXPECT_FALSE(ReadWithTlvs(tlvs + one).ok()) << int{tag};
    if (tag != 0x05 && tag != 0x06) {  // free text
      std::string shorter = one.substr(0, one.size() - 1);
      shorter[1] = static_cast<char>(shorter[1] - 1);
      EXPECT_FALSE(ReadWithTlvs(tlvs.substr(0, at) + shorter + tlvs.substr(at + one.size())).ok())
          << int{tag};
    }
    required += optional ? 0 : 1;
    at += one.size();
  }
  EXPECT_EQ(required, 12);
  EXPECT_FALSE(ReadWithTlvs(tlvs + std::string(1, '\x50')).ok());
  EXPECT_FALSE(ReadWithTlvs(tlvs + std::string("\x50\xFF\xFF\xFF\xFF", 5)).ok());
  EXPECT_FALSE(ReadWithTlvs("").ok());
}

TEST(SlabFormat, LengthsAreBoundedByTheFileBeforeUse) {
  const std::string good = GoldenSlab();
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = good;
    changed.replace(at, bytes.size(), bytes);
    const MemorySource source(changed);
    return SlabReader::Open(source).status().code();
  };
  EXPECT_EQ(with(40, std::string(8, '\xFF')), absl::StatusCode::kDataLoss);  // payload_bytes
  EXPECT_EQ(with(40, std::string("\0\xF0\xFF\xFF\xFF\xFF\xFF\xFF", 8)),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(with(48, std::string(4, '\xFF')), absl::StatusCode::kDataLoss);      // meta length
  EXPECT_EQ(with(8, std::string(4, '\xFF')), absl::StatusCode::kDataLoss);       // token_count
  EXPECT_EQ(with(20, std::string("\4\0\4\0", 4)), absl::StatusCode::kDataLoss);  // no layers
}

}  // namespace
}  // namespace kvmesh::slab

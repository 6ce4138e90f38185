#include "common/slab/cut_points.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"

namespace kvmesh::slab {
namespace {

// Length of the UTF-8 character that this byte begins; 0 for a byte that begins none.
size_t CharacterBytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Whether `second` may follow `lead`: excludes overlong forms, surrogates and what lies above
// U+10FFFF (Unicode, table 3-7).
bool MayFollow(unsigned char lead, unsigned char second) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

bool EndsInsideCharacter(absl::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    if (CharacterBytes(byte) <= back) return false;
    return back < 2 || MayFollow(byte, static_cast<unsigned char>(text[text.size() - back + 1]));
  }
  return false;
}

std::vector<CutPoint> ChooseCutPoints(const KeyNamespace& key_namespace, absl::string_view text,
                                      absl::Span<const uint32_t> token_ends, uint32_t min_tokens,
                                      uint32_t align_tokens) {
  std::vector<CutPoint> points;
  if (align_tokens == 0) return points;
  uint64_t multiple = std::max<uint64_t>(1, (min_tokens + align_tokens - 1ULL) / align_tokens);
  for (uint64_t at = multiple * align_tokens; at < token_ends.size(); at += align_tokens) {
    uint64_t tokens = at;
    while (tokens > 0 && EndsInsideCharacter(text.substr(0, token_ends[tokens - 1]))) --tokens;
    if (tokens == 0) continue;
    const uint32_t text_bytes = token_ends[tokens - 1];
    const uint32_t before = points.empty() ? 0 : points.back().text_bytes;
    if (text_bytes <= before || text_bytes >= text.size()) continue;
    if (points.size() == kCutPointsMax) break;
    points.push_back({.token_count = static_cast<uint32_t>(tokens), .text_bytes = text_bytes});
  }
  FillKeys(key_namespace, text, &points);
  return points;
}

void FillKeys(const KeyNamespace& key_namespace, absl::string_view text,
              std::vector<CutPoint>* points) {
  // Keys and block hashes are digests of prefixes of one text; the lengths of each ascend.
  ContentKeyHasher keys(key_namespace);
  ContentKeyHasher blocks(key_namespace);
  uint64_t hashed = 0;
  uint64_t blocked = 0;
  for (CutPoint& point : *points) {
    keys.Update(text.substr(hashed, point.text_bytes - hashed));
    hashed = point.text_bytes;
    const uint64_t block = BlockHashedBytes(point.text_bytes);
    blocks.Update(text.substr(blocked, block - blocked));
    blocked = block;
    point.key = keys.Key();
    point.block_hash = PrefixDigest(blocks.Key());
    point.tail_hash = TailHash(text.substr(0, point.text_bytes));
  }
}

absl::Status CheckCutPoints(const SlabMeta& meta) {
  if (meta.cut_points.size() > kCutPointsMax) {
    return Defect(defect::kCorrupt,
                  absl::StrCat(meta.cut_points.size(), " cut points, at most ", kCutPointsMax));
  }
  uint32_t tokens = 0;
  uint32_t bytes = 0;
  for (const CutPoint& point : meta.cut_points) {
    if (point.token_count <= tokens || point.text_bytes <= bytes ||
        point.token_count >= meta.header.token_count || point.text_bytes >= meta.text.size()) {
      return Defect(defect::kCorrupt,
                    absl::StrCat("the cut point at ", point.token_count, " tokens, ",
                                 point.text_bytes, " bytes is out of order or behind the end"));
    }
    if (EndsInsideCharacter(absl::string_view(meta.text).substr(0, point.text_bytes))) {
      return Defect(defect::kCorrupt, absl::StrCat("the cut point at ", point.text_bytes,
                                                   " bytes lies inside a character"));
    }
    tokens = point.token_count;
    bytes = point.text_bytes;
  }
  std::vector<CutPoint> recomputed = meta.cut_points;
  FillKeys(meta.key_namespace, meta.text, &recomputed);
  if (recomputed != meta.cut_points) {
    return Defect(defect::kCorrupt, "a cut point's key or block hash is not the text's");
  }
  return absl::OkStatus();
}

}  // namespace kvmesh::slab

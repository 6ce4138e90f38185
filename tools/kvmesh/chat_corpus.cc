#include "tools/kvmesh/chat_corpus.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "common/base/sha256.h"
#include "services/meta/core/lookup_query.h"

namespace kvmesh::cli {
namespace {

constexpr uint32_t kPoolBytes = 32 << 20;
constexpr uint32_t kFreshBytes = 1 << 20;  // at the pool's end: only of prompts
constexpr uint32_t kSystemPrompts = 64;
constexpr uint32_t kSystemBytesMin = 2200;
constexpr uint32_t kSystemBytesStep = 70;
constexpr uint32_t kTurnBytesMin = 100;
constexpr uint32_t kTurnBytesMax = 900;
constexpr uint32_t kTextBytesMax = 8000;
constexpr uint32_t kTokenBytes = 4;
constexpr uint32_t kCutBytesMin = 2048;
constexpr uint64_t kSlabBytes = 4 << 20;

uint64_t Draw(std::mt19937_64& random, uint64_t below) {
  return random() % below;
}

// Of rank r with a weight of about 1 / r.
int32_t DrawSystem(std::mt19937_64& random) {
  const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<int32_t>(std::pow(kSystemPrompts, unit)) - 1;
}

// Where the n-th KiB is cut: at a token's end that differs from one to the next.
uint32_t CutAt(uint32_t n) {
  return n * 1024 + n * 389 % 700 / kTokenBytes * kTokenBytes;
}

}  // namespace

ChatCorpus::ChatCorpus(uint32_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  pool_.resize(kPoolBytes);
  for (char& c : pool_) c = static_cast<char>(' ' + Draw(random, 95));
  turns_.reserve(rows);
  for (uint32_t row = 0; row < rows; ++row) {
    Turn turn{.before = ~DrawSystem(random)};
    uint32_t before_bytes = static_cast<uint32_t>(System(turn.before).size());
    if (row > 0 && Draw(random, 2) == 0) {
      const auto earlier = static_cast<uint32_t>(Draw(random, row));
      if (turns_[earlier].total_bytes + kTurnBytesMax <= kTextBytesMax) {
        turn.before = static_cast<int32_t>(earlier);
        before_bytes = turns_[earlier].total_bytes;
      }
    }
    turn.bytes = static_cast<uint16_t>(kTurnBytesMin + Draw(random, kTurnBytesMax - kTurnBytesMin));
    turn.offset = static_cast<uint32_t>(Draw(random, kPoolBytes - kFreshBytes - kTurnBytesMax));
    turn.total_bytes = static_cast<uint16_t>(before_bytes + turn.bytes);
    turns_.push_back(turn);
  }
}

const slab::KeyNamespace& ChatCorpus::key_namespace() {
  static const slab::KeyNamespace kNamespace = {std::string(32, 'm'), "q4_1/f16",
                                                std::string(32, 'c')};
  return kNamespace;
}

absl::string_view ChatCorpus::System(int32_t before) const {
  const auto rank = static_cast<uint32_t>(~before);
  return absl::string_view(pool_).substr(rank * 8192ULL,
                                         kSystemBytesMin + rank * 37 % 64 * kSystemBytesStep);
}

std::string ChatCorpus::Text(uint32_t row) const {
  std::vector<absl::string_view> parts;
  int32_t at = static_cast<int32_t>(row);
  for (; at >= 0; at = turns_[static_cast<size_t>(at)].before) {
    const Turn& turn = turns_[static_cast<size_t>(at)];
    parts.push_back(absl::string_view(pool_).substr(turn.offset, turn.bytes));
  }
  parts.push_back(System(at));
  std::string text;
  text.reserve(turns_[row].total_bytes);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    text.append(part->data(), part->size());
  }
  return text;
}

meta::RowOpened ChatCorpus::Row(uint32_t row) const {
  const std::string text = Text(row);
  const meta::LookupQuery query(key_namespace(), text);
  const auto point_at = [&](uint32_t bytes) {
    const uint32_t blocks = bytes / meta::kBlockBytes;
    return slab::CutPoint{.token_count = bytes / kTokenBytes,
                          .text_bytes = bytes,
                          .block_hash = query.BlockHash(blocks),
                          .tail_hash = slab::TailHash(absl::string_view(text).substr(0, bytes)),
                          .key = query.Key(blocks, bytes % meta::kBlockBytes)};
  };
  const slab::CutPoint end = point_at(static_cast<uint32_t>(text.size()));
  meta::RowOpened opened{.row = meta::RowId{row},
                         .key = end.key,
                         .tokens_sha256 = end.key,
                         .block_hash = end.block_hash,
                         .tail_hash = end.tail_hash,
                         .token_count = end.token_count,
                         .text_bytes = end.text_bytes};
  for (uint32_t n = kCutBytesMin / 1024; CutAt(n) + kTokenBytes <= text.size(); ++n) {
    opened.cut_points.push_back(point_at(CutAt(n)));
  }
  WriteId write_id;
  std::copy_n(end.key.bytes().begin(), WriteId::kSize, write_id.mutable_data());
  for (const LayerRange layers : {LayerRange{0, 15}, LayerRange{15, 30}}) {
    opened.slabs.push_back({.layers = layers, .write_id = write_id, .size_bytes = kSlabBytes});
  }
  return opened;
}

ChatCorpus::Prompt ChatCorpus::MakePrompt(uint64_t random, uint32_t bytes) const {
  std::mt19937_64 draw(random);
  Prompt prompt;
  const auto row = static_cast<uint32_t>(Draw(draw, size()));
  // Three in ten ask something new behind the row's system prompt.
  if (Draw(draw, 10) < 3) {
    auto before = static_cast<int32_t>(row);
    while (before >= 0) before = turns_[static_cast<size_t>(before)].before;
    prompt.text = std::string(System(before));
    for (uint32_t n = kCutBytesMin / 1024; CutAt(n) <= prompt.text.size(); ++n) {
      prompt.match_bytes_min = CutAt(n);
    }
  } else {
    prompt.text = Text(row);
    prompt.match_bytes_min = turns_[row].total_bytes;
  }
  // Begins with a byte that no row's text has.
  prompt.text.push_back('\x7F');
  const uint64_t fresh = kPoolBytes - kFreshBytes + Draw(draw, kFreshBytes - bytes);
  prompt.text.append(pool_, fresh, bytes - std::min<size_t>(bytes, prompt.text.size()));
  prompt.text.resize(bytes);
  prompt.match_bytes_min = std::min(prompt.match_bytes_min, bytes);
  return prompt;
}

}  // namespace kvmesh::cli

#include "common/slab/content_key.h"

namespace kvmesh::slab {

ContentKeyHasher::ContentKeyHasher(const KeyNamespace& key_namespace) {
  std::string fields;  // at once: OpenSSL takes longer to begin than for so few bytes
  for (const std::string* field :
       {&key_namespace.model_fp, &key_namespace.quant, &key_namespace.ctx_params}) {
    for (int shift = 0; shift < 64; shift += 8) {
      fields.push_back(static_cast<char>(uint64_t{field->size()} >> shift));
    }
    fields.append(*field);
  }
  hash_.Update(fields);
}

Sha256Digest ContentKey(const KeyNamespace& key_namespace, absl::string_view text) {
  ContentKeyHasher hasher(key_namespace);
  hasher.Update(text);
  return hasher.Key();
}

uint64_t BlockHash(const KeyNamespace& key_namespace, absl::string_view text) {
  return PrefixDigest(ContentKey(key_namespace, text.substr(0, BlockHashedBytes(text.size()))));
}

uint32_t TailHash(absl::string_view text) {
  uint32_t hash = kTailHashEmpty;
  for (char byte : text.substr(BlockHashedBytes(text.size()))) hash = ExtendTailHash(hash, byte);
  return hash;
}

void AppendPiece(absl::string_view piece, std::string* text) {
  for (char byte : piece) {
    text->push_back(byte);
    if (byte == '\xFF') text->push_back('\0');
  }
}

void AppendControlToken(uint32_t token_id, std::string* text) {
  text->append("\xFF\x01", 2);
  for (int shift = 0; shift < 32; shift += 8) {
    text->push_back(static_cast<char>(token_id >> shift));
  }
}

}  // namespace kvmesh::slab

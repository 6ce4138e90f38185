#include "common/rpc/slab_codec.h"

#include <string>

namespace kvmesh::rpc {

v1::SlabId EncodeSlabId(const Sha256Digest& key, LayerRange layers, const WriteId& write_id) {
  v1::SlabId id;
  id.set_key(key.ToHex());
  id.mutable_layers()->set_begin(layers.begin);
  id.mutable_layers()->set_end(layers.end);
  id.set_write_id(write_id.ToHex());
  return id;
}

v1::SlabInfo EncodeSlab(const SlabDescription& description) {
  v1::SlabInfo info;
  *info.mutable_slab() = EncodeSlabId(description.key, description.layers, description.write_id);
  info.set_size_bytes(description.size_bytes);
  info.set_charged_bytes(slab::AlignUp(description.size_bytes));
  info.set_token_count(description.token_count);
  info.set_text_bytes(description.text_bytes);
  info.set_tokens_sha256(std::string(description.tokens_sha256.bytes()));
  info.mutable_namespace_()->set_model_fp(description.key_namespace.model_fp);
  info.mutable_namespace_()->set_quant(description.key_namespace.quant);
  info.mutable_namespace_()->set_ctx_params_hash(description.key_namespace.ctx_params);
  info.set_block_hash(description.block_hash);
  info.set_tail_hash(description.tail_hash);
  for (const slab::CutPoint& point : description.cut_points) {
    v1::CutPoint& cut = *info.add_cut_points();
    cut.set_token_count(point.token_count);
    cut.set_text_bytes(point.text_bytes);
    cut.set_block_hash(point.block_hash);
    cut.set_tail_hash(point.tail_hash);
    cut.set_key(point.key.ToHex());
  }
  info.set_save_reason(std::string(slab::ToString(description.reason)));
  return info;
}

}  // namespace kvmesh::rpc

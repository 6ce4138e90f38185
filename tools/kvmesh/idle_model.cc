#include "tools/kvmesh/idle_model.h"

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {
namespace {

constexpr uint64_t kHidden = 256;
constexpr uint64_t kVocabulary = 256;

absl::Status WriteFile(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
  out.flush();
  if (out.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

Json Config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", kHidden},
          {"intermediate_size", kHidden},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"vocab_size", kVocabulary},
          {"eos_token_id", 0}};
}

// Weights in the layout of the safetensors format: the header's length, the header, the data.
std::string Weights() {
  std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {
      {"model.embed_tokens.weight", {kVocabulary, kHidden}}, {"model.norm.weight", {kHidden}}};
  const std::string layer = "model.layers.0.";
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    tensors.push_back({absl::StrCat(layer, norm, ".weight"), {kHidden}});
  }
  for (const char* matrix : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tensors.push_back({absl::StrCat(layer, matrix, ".weight"), {kHidden, kHidden}});
  }
  Json header;
  uint64_t end = 0;
  for (const auto& [name, shape] : tensors) {
    uint64_t bytes = 2;
    for (const uint64_t dimension : shape) bytes *= dimension;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string text = header.dump();
  std::string file;
  for (int byte = 0; byte < 8; ++byte) {
    file.push_back(static_cast<char>(text.size() >> (8 * byte) & 0xFF));
  }
  return file + text + std::string(end, '\0');
}

// GPT-2's spelling of bytes: printable ones of Latin-1 stand for themselves, the others for the
// characters from U+0100 on.
Json Tokenizer() {
  Json vocabulary;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < kVocabulary; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t code = itself ? byte : next++;
    std::string spelt;
    if (code < 0x80) {
      spelt.push_back(static_cast<char>(code));
    } else {
      spelt.push_back(static_cast<char>(0xC0 | code >> 6));
      spelt.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
    vocabulary[spelt] = byte;
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

}  // namespace

absl::Status WriteIdleModel(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot create ", folder, ": ", error.message()));
  }
  KVMESH_RETURN_IF_ERROR(WriteFile(folder + "/config.json", Config().dump()));
  KVMESH_RETURN_IF_ERROR(WriteFile(folder + "/model.safetensors", Weights()));
  return WriteFile(folder + "/tokenizer.json", Tokenizer().dump());
}

}  // namespace kvmesh::cli

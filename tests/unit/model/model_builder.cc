#include "tests/unit/model/model_builder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvmesh::model {
namespace {

constexpr uint64_t kAlignment = 32;

std::string Padded(std::string bytes) {
  bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment, '\0');
  return bytes;
}

uint64_t Product(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (const uint64_t dimension : shape) product *= dimension;
  return product;
}

nlohmann::json TinyConfig(const std::string& family, const std::string& class_name) {
  return {{"model_type", family},
          {"architectures", {class_name}},
          {"num_hidden_layers", 2},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 8},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"hidden_act", "silu"},
          {"bos_token_id", 1},
          {"eos_token_id", 2}};
}

}  // namespace

std::string GgufString(const std::string& text) {
  return Raw<uint64_t>(text.size()) + text;
}

GgufBuilder& GgufBuilder::Set(const std::string& key, GgufValueType type,
                              const std::string& value) {
  values_[key] = {static_cast<uint32_t>(type), value};
  return *this;
}

GgufBuilder& GgufBuilder::SetUint32(const std::string& key, uint32_t value) {
  return Set(key, GgufValueType::kUint32, Raw(value));
}

GgufBuilder& GgufBuilder::SetFloat(const std::string& key, float value) {
  return Set(key, GgufValueType::kFloat32, Raw(value));
}

GgufBuilder& GgufBuilder::SetString(const std::string& key, const std::string& value) {
  return Set(key, GgufValueType::kString, GgufString(value));
}

GgufBuilder& GgufBuilder::SetStrings(const std::string& key,
                                     const std::vector<std::string>& values) {
  std::string bytes =
      Raw(static_cast<uint32_t>(GgufValueType::kString)) + Raw<uint64_t>(values.size());
  for (const std::string& value : values) bytes += GgufString(value);
  return Set(key, GgufValueType::kArray, bytes);
}

GgufBuilder& GgufBuilder::Remove(const std::string& key) {
  values_.erase(key);
  return *this;
}

GgufBuilder& GgufBuilder::AddTensor(const std::string& name, const std::vector<uint64_t>& ne) {
  tensors_[name] = {.ne = ne, .data = std::string(Product(ne) * sizeof(float), '\0')};
  return *this;
}

std::string GgufBuilder::Bytes() const {
  std::string bytes =
      "GGUF" + Raw<uint32_t>(3) + Raw<uint64_t>(tensors_.size()) + Raw<uint64_t>(values_.size());
  for (const auto& [key, value] : values_) {
    bytes += GgufString(key) + Raw(value.first) + value.second;
  }
  std::string data;
  for (const auto& [name, tensor] : tensors_) {
    bytes += GgufString(name) + Raw<uint32_t>(tensor.ne.size());
    for (const uint64_t dimension : tensor.ne) bytes += Raw(dimension);
    bytes += Raw(tensor.type) + Raw<uint64_t>(data.size());
    data = Padded(data + tensor.data);
  }
  return Padded(bytes) + data;
}

GgufBuilder TinyGguf() {
  GgufBuilder builder;
  builder.SetString("general.architecture", "llama")
      .SetUint32("llama.block_count", 2)
      .SetUint32("llama.context_length", 64)
      .SetUint32("llama.embedding_length", 16)
      .SetUint32("llama.feed_forward_length", 24)
      .SetUint32("llama.attention.head_count", 4)
      .SetUint32("llama.attention.head_count_kv", 2)
      .SetFloat("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .SetUint32("tokenizer.ggml.eos_token_id", 2)
      .SetStrings("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "g", "h"});
  builder.AddTensor("token_embd.weight", {16, 8})
      .AddTensor("output_norm.weight", {16})
      .AddTensor("output.weight", {16, 8});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    builder.AddTensor(prefix + "attn_norm.weight", {16})
        .AddTensor(prefix + "attn_q.weight", {16, 16})
        .AddTensor(prefix + "attn_k.weight", {16, 8})
        .AddTensor(prefix + "attn_v.weight", {16, 8})
        .AddTensor(prefix + "attn_output.weight", {16, 16})
        .AddTensor(prefix + "ffn_norm.weight", {16})
        .AddTensor(prefix + "ffn_gate.weight", {16, 24})
        .AddTensor(prefix + "ffn_up.weight", {16, 24})
        .AddTensor(prefix + "ffn_down.weight", {24, 16});
  }
  return builder;
}

TinyFolder TinyLlama() {
  TinyFolder model{.config = TinyConfig("llama", "LlamaForCausalLM")};
  model.tensors = {{"model.embed_tokens.weight", {"F32", {8, 16}}},
                   {"model.norm.weight", {"F32", {16}}},
                   {"lm_head.weight", {"F32", {8, 16}}}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    model.tensors[prefix + "input_layernorm.weight"] = {"F32", {16}};
    model.tensors[prefix + "self_attn.q_proj.weight"] = {"F32", {16, 16}};
    model.tensors[prefix + "self_attn.k_proj.weight"] = {"F32", {8, 16}};
    model.tensors[prefix + "self_attn.v_proj.weight"] = {"F32", {8, 16}};
    model.tensors[prefix + "self_attn.o_proj.weight"] = {"F32", {16, 16}};
    model.tensors[prefix + "post_attention_layernorm.weight"] = {"F32", {16}};
    model.tensors[prefix + "mlp.gate_proj.weight"] = {"F32", {24, 16}};
    model.tensors[prefix + "mlp.up_proj.weight"] = {"F32", {24, 16}};
    model.tensors[prefix + "mlp.down_proj.weight"] = {"F32", {16, 24}};
  }
  return model;
}

TinyFolder TinyQwen2() {
  TinyFolder model = TinyLlama();
  model.config = TinyConfig("qwen2", "Qwen2ForCausalLM");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
    model.tensors[prefix + "q_proj.bias"] = {"F32", {16}};
    model.tensors[prefix + "k_proj.bias"] = {"F32", {8}};
    model.tensors[prefix + "v_proj.bias"] = {"F32", {8}};
  }
  return model;
}

std::string SafetensorsBytes(const std::map<std::string, SafetensorsSpec>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t element = tensor.dtype == "F32" ? 4 : tensor.dtype == "I64" ? 8 : 2;
    const uint64_t begin = data.size();
    for (uint64_t i = 0; i < Product(tensor.shape) * element; ++i) {
      data.push_back(name[i % name.size()]);
    }
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  return Raw<uint64_t>(text.size()) + text + data;
}

TempFolder::TempFolder() {
  std::string name = ::testing::TempDir() + "kvmesh-model-XXXXXX";
  path_ = mkdtemp(name.data());
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::Write(const std::string& name, const std::string& content) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::remove(file);  // a new file each time: rewriting one in place waits for the disk
  std::ofstream(file, std::ios::binary) << content;
  std::filesystem::last_write_time(
      file, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(1));
  return file.string();
}

std::string TempFolder::WriteModel(const TinyFolder& model) const {
  Write("config.json", model.config.dump());
  Write("model.safetensors", SafetensorsBytes(model.tensors));
  return path_.string();
}

}  // namespace kvmesh::model

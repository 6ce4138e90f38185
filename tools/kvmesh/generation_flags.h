// The flags that shape an answer, shared by `generate` and `chat`.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvmesh/v1/router.pb.h"

namespace kvmesh::cli {

struct GenerationFlags {
  std::string router;
  uint32_t max_tokens = 0;
  std::optional<float> temperature;
  std::optional<uint32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  std::string cache = "on";
  std::string parent_key;
  bool require_exact_tokens = false;
  bool ignore_eos = false;
  int timeout_seconds = 600;
};

void AddGenerationFlags(CLI::App& command, GenerationFlags& flags);

v1::GenerationOptions ToOptions(const GenerationFlags& flags);

}  // namespace kvmesh::cli

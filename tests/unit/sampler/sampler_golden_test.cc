// The goldens of text/sampler: every step of every case, whole sequences, and the generator's known
// answers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/shard/core/sampler.h"

namespace kvmesh::shard {
namespace {

using forward::SamplingOptions;
using nlohmann::json;

// Nothing when the folder is not there: it is then named and passed over.
std::optional<json> Load(const std::string& name) {
  const char* data = std::getenv("KVMESH_TEST_DATA");
  const std::filesystem::path folder =
      std::filesystem::path(data != nullptr ? data : "tests/data") / "text" / "sampler";
  if (!std::filesystem::is_directory(folder)) {
    std::printf("%s is absent: passed over\n", folder.c_str());
    return std::nullopt;
  }
  std::ifstream file(folder / name);
  EXPECT_TRUE(file.is_open()) << folder / name;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return json::parse(std::regex_replace(text, std::regex("-Infinity"), "\"-inf\""));
}

double Number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "-inf" ? -infinity : infinity;
}

std::vector<float> Logits(const json& values) {
  std::vector<float> logits;
  for (const json& value : values) logits.push_back(static_cast<float>(Number(value)));
  return logits;
}

SamplingOptions Options(const json& params) {
  SamplingOptions options;
  options.temperature = params.value("temperature", 1.0);
  options.top_k = params.value("top_k", 0u);
  options.top_p = params.value("top_p", 1.0);
  options.min_p = params.value("min_p", 0.0);
  options.repetition_penalty = params.value("repetition_penalty", 1.0);
  options.presence_penalty = params.value("presence_penalty", 0.0);
  options.frequency_penalty = params.value("frequency_penalty", 0.0);
  if (params.contains("logit_bias")) {
    for (const auto& [id, bias] : params["logit_bias"].items()) {
      options.logit_bias.emplace_back(std::stoul(id), static_cast<float>(Number(bias)));
    }
  }
  return options;
}

// `options` with the steps after the named one turned off.
SamplingOptions Until(SamplingOptions options, const std::string& step) {
  const std::vector<std::string> order = {
      "after_logit_bias",  "after_repetition", "after_presence_frequency",
      "after_temperature", "after_top_k",      "after_top_p",
      "after_min_p"};
  const auto index = std::find(order.begin(), order.end(), step) - order.begin();
  if (index < 1) options.repetition_penalty = 1;
  if (index < 2) options.presence_penalty = options.frequency_penalty = 0;
  if (index < 4) options.top_k = 0;
  if (index < 5) options.top_p = 1;
  if (index < 6) options.min_p = 0;
  return options;
}

void ExpectNear(double got, const json& want, const std::string& what) {
  const double expected = Number(want);
  if (std::isinf(expected)) {
    EXPECT_LT(got, -745) << what;
    return;
  }
  EXPECT_NEAR(got, expected, 1e-9 * std::max(1.0, std::abs(expected))) << what;
}

struct Case {
  std::vector<float> logits;
  SamplingOptions options;
  std::vector<uint32_t> history;
  uint32_t prompt_tokens = 0;

  explicit Case(const json& c) : logits(Logits(c["logits"])), options(Options(c["params"])) {
    history = c["prompt_ids"].get<std::vector<uint32_t>>();
    prompt_tokens = static_cast<uint32_t>(history.size());
    for (const json& id : c["output_ids"]) history.push_back(id.get<uint32_t>());
  }
  std::vector<double> Adjusted(const SamplingOptions& with) const {
    return AdjustedLogits(logits, with, history, prompt_tokens).value();
  }
};

void CheckStage(const Case& c, const std::string& step, const json& want) {
  const SamplingOptions options = Until(c.options, step);
  const std::vector<double> adjusted = c.Adjusted(options);
  if (!want.contains("count")) {  // ids with their logits
    for (const auto& [id, logit] : want.items()) {
      const double got = adjusted[std::stoul(id)];
      if (std::isinf(Number(logit))) {
        EXPECT_EQ(got, Number(logit)) << step;
      } else {
        ExpectNear(got, logit, step);
      }
    }
    return;
  }
  const std::vector<Candidate> left = Survivors(adjusted, options).value();
  ASSERT_EQ(left.size(), want["count"].get<size_t>()) << step;
  for (size_t i = 0; i < want["ids"].size(); ++i) {
    EXPECT_EQ(left[i].token_id, want["ids"][i].get<uint32_t>()) << step << " rank " << i;
    ExpectNear(left[i].probability, want["probs"][i], step);
  }
}

// The token drawn with a given uniform number: what Sample does after SamplingUniform.
uint32_t DrawWith(const std::vector<Candidate>& survivors, double uniform) {
  double sum = 0;
  for (const Candidate& candidate : survivors) {
    sum += candidate.probability;
    if (uniform < sum) return candidate.token_id;
  }
  return survivors.back().token_id;
}

void CheckLogprobs(const Case& c, const json& want, const std::vector<Candidate>& survivors) {
  const std::vector<SampledLogprob> top = TopLogprobs(c.logits, 5);
  for (size_t i = 0; i < want["raw_logprobs_top5"].size(); ++i) {
    EXPECT_EQ(top[i].token_id, want["raw_logprobs_top5"][i][0].get<uint32_t>());
    ExpectNear(top[i].logprob, want["raw_logprobs_top5"][i][1], "raw logprob");
  }
  if (!want.contains("final_logprobs_top5")) return;
  for (size_t i = 0; i < want["final_logprobs_top5"].size(); ++i) {
    EXPECT_EQ(survivors[i].token_id, want["final_logprobs_top5"][i][0].get<uint32_t>());
    ExpectNear(std::log(survivors[i].probability), want["final_logprobs_top5"][i][1], "final");
  }
}

void CheckCase(const json& golden) {
  const Case c(golden);
  const json& want = golden["expect"];
  const auto sampled = Sample(c.logits, c.options, c.history, c.prompt_tokens, c.history.size());
  if (want.contains("error")) {
    EXPECT_EQ(sampled.status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(std::string(sampled.status().message()), want["error"].get<std::string>());
    return;
  }
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  for (const auto& [step, expected] : want["stages"].items()) CheckStage(c, step, expected);
  const std::vector<Candidate> survivors = Survivors(c.Adjusted(c.options), c.options).value();
  const json& candidates = want["candidates"];
  for (size_t i = 0; i < candidates.size(); ++i) {
    ASSERT_LT(i, survivors.size());
    EXPECT_EQ(survivors[i].token_id, candidates[i][0].get<uint32_t>()) << "candidate " << i;
    ExpectNear(survivors[i].probability, candidates[i][1], "candidate");
  }
  CheckLogprobs(c, want, survivors);
  if (want.contains("draws")) {
    for (const json& draw : want["draws"]) {
      EXPECT_EQ(DrawWith(survivors, draw[0].get<double>()), draw[1].get<uint32_t>()) << draw[0];
    }
  }
  if (want["greedy"].get<bool>()) {
    EXPECT_EQ(sampled->token_id, candidates[0][0].get<uint32_t>());
  } else {
    EXPECT_EQ(sampled->token_id,
              DrawWith(survivors, SamplingUniform(c.options.seed, c.history.size())));
  }
}

TEST(SamplerGolden, Processors) {
  const std::optional<json> golden = Load("processors.json");
  if (!golden.has_value()) return;
  for (const json& c : (*golden)["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    CheckCase(c);
  }
  std::printf("%zu cases ran\n", (*golden)["cases"].size());
  EXPECT_FALSE((*golden)["cases"].empty());
}

TEST(SamplerGolden, Sequences) {
  const std::optional<json> golden = Load("sequences.json");
  if (!golden.has_value()) return;
  for (const json& c : (*golden)["cases"]) {
    const std::vector<float> logits = Logits(c["logits"]);
    SamplingOptions options = Options(c["params"]);
    options.seed = std::stoull(c["seed"].get<std::string>());
    const uint64_t first = std::stoull(c["first_position"].get<std::string>());
    for (size_t i = 0; i < c["ids"].size(); ++i) {
      if (c["near_cdf_edge"][i].get<bool>()) continue;
      const auto sampled = Sample(logits, options, {}, 0, first + i);
      ASSERT_TRUE(sampled.ok()) << sampled.status();
      EXPECT_EQ(sampled->token_id, c["ids"][i].get<uint32_t>()) << "position " << first + i;
    }
  }
  std::printf("%zu cases ran\n", (*golden)["cases"].size());
  EXPECT_FALSE((*golden)["cases"].empty());
}

template <size_t N>
std::array<uint32_t, N> Words(const json& hex) {
  std::array<uint32_t, N> words{};
  for (size_t i = 0; i < N; ++i) words[i] = std::stoul(hex[i].get<std::string>(), nullptr, 16);
  return words;
}

TEST(SamplerGolden, Philox) {
  const std::optional<json> golden = Load("philox.json");
  if (!golden.has_value()) return;
  for (const json& c : (*golden)["known_answers"]) {
    EXPECT_EQ(Philox4x32(Words<4>(c["counter"]), Words<2>(c["key"])), Words<4>(c["output"]));
  }
  for (const json& c : (*golden)["uniforms"]) {
    const uint64_t seed = std::stoull(c["seed"].get<std::string>());
    const uint64_t position = std::stoull(c["position"].get<std::string>());
    EXPECT_EQ(SamplingUniform(seed, position), c["uniform"].get<double>());
  }
  const size_t cases = (*golden)["known_answers"].size() + (*golden)["uniforms"].size();
  std::printf("%zu cases ran\n", cases);
  EXPECT_GT(cases, 0u);
}

}  // namespace
}  // namespace kvmesh::shard

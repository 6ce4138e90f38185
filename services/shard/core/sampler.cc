#include "services/shard/core/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace kvmesh::shard {
namespace {

using forward::SamplingOptions;

constexpr double kGreedyBelow = 1e-5;
// Thresholds of top_p and min_p are met within this, so that rounding does not decide (the
// fixtures' eps).
constexpr double kThresholdSlack = 1e-6;

bool IsGreedy(const SamplingOptions& options) {
  return !(options.temperature >= kGreedyBelow);
}

bool HasPenalties(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.presence_penalty != 0 ||
         options.frequency_penalty != 0;
}

// What is to be known of all logits before one is chosen.
template <typename T>
struct Extent {
  T highest = -std::numeric_limits<T>::infinity();
  size_t block = 0;  // where the first block with it begins
  bool nan = false;
};

// One pass over the vocabulary, on the way of every token: lanes that do not depend on one another
// let the compiler take many logits at once.
template <typename T>
Extent<T> ExtentOf(absl::Span<const T> logits) {
  constexpr size_t kLanes = 16;
  constexpr size_t kBlock = 32 * kLanes;
  Extent<T> extent;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const absl::Span<const T> block = logits.subspan(begin, kBlock);
    std::array<T, kLanes> highest;
    highest.fill(-std::numeric_limits<T>::infinity());
    std::array<int, kLanes> nan{};
    const auto take = [&](size_t i, size_t lane) {
      highest[lane] = block[i] > highest[lane] ? block[i] : highest[lane];
      nan[lane] |= static_cast<int>(block[i] != block[i]);
    };
    size_t i = 0;
    for (; i + kLanes <= block.size(); i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) take(i + lane, lane);
    }
    for (; i < block.size(); ++i) take(i, 0);
    extent.nan |= std::find(nan.begin(), nan.end(), 1) != nan.end();
    const T top = *std::max_element(highest.begin(), highest.end());
    if (top <= extent.highest) continue;
    extent.highest = top;
    extent.block = begin;
  }
  return extent;
}

template <typename T>
absl::Status Check(const Extent<T>& extent) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  if (extent.nan) return absl::InternalError("nan_logits");
  if (extent.highest == kInfinity) return absl::InternalError("inf_logits");
  if (extent.highest == -kInfinity) return absl::InternalError("no_candidates");
  return absl::OkStatus();
}

template <typename T>
absl::Status CheckLogits(absl::Span<const T> logits) {
  return Check(ExtentOf(logits));
}

// The id of the highest; the lowest id on ties. Errors as of Check.
template <typename T>
absl::StatusOr<uint32_t> ArgMax(absl::Span<const T> logits) {
  const Extent<T> extent = ExtentOf(logits);
  KVMESH_RETURN_IF_ERROR(Check(extent));
  const auto from = logits.begin() + static_cast<ptrdiff_t>(extent.block);
  return static_cast<uint32_t>(std::find(from, logits.end(), extent.highest) - logits.begin());
}

void ApplyPenalties(const SamplingOptions& options, absl::Span<const uint32_t> history,
                    uint32_t prompt_tokens, std::vector<double>& logits) {
  constexpr uint32_t kSeen = 1u << 31;
  std::vector<uint32_t> marks(logits.size(), 0);  // kSeen | times in the output
  for (size_t i = 0; i < history.size(); ++i) {
    if (history[i] >= marks.size()) continue;
    uint32_t& mark = marks[history[i]];
    mark = (mark | kSeen) + (i >= prompt_tokens ? 1 : 0);
  }
  for (size_t id = 0; id < marks.size(); ++id) {
    if (marks[id] == 0) continue;
    double& logit = logits[id];
    logit = logit < 0 ? logit * options.repetition_penalty : logit / options.repetition_penalty;
    const uint32_t count = marks[id] & ~kSeen;
    if (count > 0) logit -= count * options.frequency_penalty + options.presence_penalty;
  }
}

struct Weighted {
  uint32_t id;
  double logit;   // after temperature
  double weight;  // exp(logit - highest)
};

bool Before(const Weighted& a, const Weighted& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Candidates whose order is found only as far as it is asked for.
class RankedCandidates {
 public:
  RankedCandidates(absl::Span<const double> logits, double temperature) {
    const double highest = *std::max_element(logits.begin(), logits.end()) / temperature;
    items_.reserve(logits.size());
    for (size_t id = 0; id < logits.size(); ++id) {
      const double logit = logits[id] / temperature;
      if (logit == -std::numeric_limits<double>::infinity()) continue;
      items_.push_back({static_cast<uint32_t>(id), logit, std::exp(logit - highest)});
    }
  }

  size_t size() const { return items_.size(); }

  const Weighted& Ranked(size_t rank) {
    if (rank >= sorted_) SortTo(std::max({rank + 1, sorted_ * 4, size_t{64}}));
    return items_[rank];
  }

  // Keeps the first `count`.
  void Keep(size_t count) {
    if (count == 0 || count >= items_.size()) return;
    SortTo(count);
    items_.resize(count);
    sorted_ = std::min(sorted_, count);
  }

  // Keeps weights of at least `weight_min`; the first always stays.
  void KeepHeavy(double weight_min) {
    const Weighted first = Ranked(0);
    std::erase_if(items_, [&](const Weighted& item) {
      return item.weight < weight_min && item.id != first.id;
    });
    // What fell out ranks behind everything that stayed.
    sorted_ = std::min(sorted_, items_.size());
  }

  // How many of the first reach `mass` together; all of them if they do not. At least 1.
  size_t CountToMass(double mass) {
    double sum = 0;
    for (size_t rank = 0; rank < items_.size(); ++rank) {
      sum += Ranked(rank).weight;
      if (sum >= mass) return rank + 1;
    }
    return items_.size();
  }

  double Mass() const {
    double sum = 0;
    for (const Weighted& item : items_) sum += item.weight;
    return sum;
  }

 private:
  void SortTo(size_t count) {
    count = std::min(count, items_.size());
    if (count <= sorted_) return;
    const auto from = items_.begin() + static_cast<ptrdiff_t>(sorted_);
    const auto to = items_.begin() + static_cast<ptrdiff_t>(count);
    if (to != items_.end()) std::nth_element(from, to, items_.end(), Before);
    std::sort(from, to, Before);
    sorted_ = count;
  }

  std::vector<Weighted> items_;
  size_t sorted_ = 0;  // the first so many are in their final order
};

void Filter(const SamplingOptions& options, RankedCandidates& candidates) {
  candidates.Keep(options.top_k);
  if (options.top_p < 1) {
    const double mass = (options.top_p - kThresholdSlack) * candidates.Mass();
    candidates.Keep(candidates.CountToMass(mass));
  }
  if (options.min_p > 0) candidates.KeepHeavy(options.min_p - kThresholdSlack);
}

// The first candidate, in order, with uniform < cumulative probability.
uint32_t Draw(RankedCandidates& candidates, double uniform) {
  const double target = uniform * candidates.Mass();
  double sum = 0;
  for (size_t rank = 0; rank + 1 < candidates.size(); ++rank) {
    sum += candidates.Ranked(rank).weight;
    if (target < sum) return candidates.Ranked(rank).id;
  }
  return candidates.Ranked(candidates.size() - 1).id;
}

// log(sum(exp(logit - highest))) and highest, kept apart: their sum loses the first when logits are
// huge.
struct LogNormalizer {
  double highest = 0;
  double log_sum = 0;
  explicit LogNormalizer(absl::Span<const float> logits) {
    highest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - highest);
    log_sum = std::log(sum);
  }
  double Logprob(float logit) const { return (logit - highest) - log_sum; }
};

std::vector<SampledLogprob> TopLogprobs(absl::Span<const float> logits, uint32_t count,
                                        const LogNormalizer& normalizer) {
  std::vector<uint32_t> ids(logits.size());
  for (size_t id = 0; id < ids.size(); ++id) ids[id] = static_cast<uint32_t>(id);
  const size_t kept = std::min<size_t>(count, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(kept), ids.end(),
                    [&](uint32_t a, uint32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  std::vector<SampledLogprob> top;
  for (size_t i = 0; i < kept; ++i) {
    top.push_back({ids[i], normalizer.Logprob(logits[ids[i]])});
  }
  return top;
}

absl::StatusOr<uint32_t> Choose(absl::Span<const float> logits, const SamplingOptions& options,
                                absl::Span<const uint32_t> history, uint32_t prompt_tokens,
                                uint64_t position) {
  const bool untouched = options.logit_bias.empty() && !HasPenalties(options);
  if (IsGreedy(options) && untouched) return ArgMax(logits);
  KVMESH_ASSIGN_OR_RETURN(const std::vector<double> adjusted,
                          AdjustedLogits(logits, options, history, prompt_tokens));
  if (IsGreedy(options)) return ArgMax<double>(adjusted);
  RankedCandidates candidates(adjusted, options.temperature);
  Filter(options, candidates);
  return Draw(candidates, SamplingUniform(options.seed, position));
}

}  // namespace

absl::StatusOr<std::vector<double>> AdjustedLogits(absl::Span<const float> logits,
                                                   const SamplingOptions& options,
                                                   absl::Span<const uint32_t> history,
                                                   uint32_t prompt_tokens) {
  KVMESH_RETURN_IF_ERROR(CheckLogits(logits));
  std::vector<double> adjusted(logits.begin(), logits.end());
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < adjusted.size()) adjusted[id] += bias;
  }
  if (HasPenalties(options)) ApplyPenalties(options, history, prompt_tokens, adjusted);
  // Options of any value may arrive; none of them makes a token out of NaN.
  KVMESH_RETURN_IF_ERROR(CheckLogits<double>(adjusted));
  return adjusted;
}

absl::StatusOr<std::vector<Candidate>> Survivors(absl::Span<const double> adjusted_logits,
                                                 const SamplingOptions& options) {
  if (IsGreedy(options)) {
    KVMESH_ASSIGN_OR_RETURN(const uint32_t id, ArgMax(adjusted_logits));
    return std::vector<Candidate>{{id, 1.0}};
  }
  KVMESH_RETURN_IF_ERROR(CheckLogits(adjusted_logits));
  RankedCandidates ranked(adjusted_logits, options.temperature);
  Filter(options, ranked);
  const double mass = ranked.Mass();
  std::vector<Candidate> survivors;
  survivors.reserve(ranked.size());
  for (size_t rank = 0; rank < ranked.size(); ++rank) {
    const Weighted& item = ranked.Ranked(rank);
    survivors.push_back({item.id, item.weight / mass});
  }
  return survivors;
}

std::vector<SampledLogprob> TopLogprobs(absl::Span<const float> logits, uint32_t count) {
  return TopLogprobs(logits, count, LogNormalizer(logits));
}

absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingOptions& options,
                                    absl::Span<const uint32_t> history, uint32_t prompt_tokens,
                                    uint64_t position) {
  SampledToken sampled;
  KVMESH_ASSIGN_OR_RETURN(sampled.token_id,
                          Choose(logits, options, history, prompt_tokens, position));
  if (options.logprobs) {
    const LogNormalizer normalizer(logits);
    sampled.chosen = {sampled.token_id, normalizer.Logprob(logits[sampled.token_id])};
    sampled.top = TopLogprobs(logits, options.top_logprobs, normalizer);
  }
  return sampled;
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

double SamplingUniform(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (words[0] >> 8) * 0x1p-24;
}

}  // namespace kvmesh::shard

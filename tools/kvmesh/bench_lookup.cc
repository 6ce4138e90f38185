// `bench lookup`: the core's lookup, in this process and thread.
#include <chrono>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "services/meta/index/read_index.h"
#include "tools/kvmesh/bench_util.h"
#include "tools/kvmesh/chat_corpus.h"

namespace kvmesh::cli {
namespace {

constexpr uint64_t kSeed = 20260101;

struct LookupFlags {
  uint32_t rows = 100'000;
  uint32_t prompt_bytes = 8192;
  int prompts = 20'000;
  int rounds = 5;
};

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

// Of a round; sorts.
double Percentile(std::vector<double>& values, double share) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

struct Rounds {
  std::vector<double> p50, p99, sha256_p50, beyond_p50, beyond_p99;
  double matched_bytes = 0;  // in all
  double prompts = 0;
};

// One prompt after the other, each looked up once, as it would be in a service: new, but in cache.
absl::Status MeasureRound(const ChatCorpus& corpus, const meta::ReadIndex& index,
                          const LookupFlags& flags, uint64_t seed, Rounds* rounds) {
  std::vector<double> whole, sha256, beyond;
  for (int i = 0; i < flags.prompts; ++i) {
    const ChatCorpus::Prompt prompt =
        corpus.MakePrompt(seed * 1'000'003 + static_cast<uint64_t>(i), flags.prompt_bytes);
    const auto start = Clock::now();
    const Sha256Digest digest = Sha256Of(prompt.text);
    const auto hashed = Clock::now();
    const meta::LookupQuery query(ChatCorpus::key_namespace(), prompt.text);
    const std::optional<meta::LookupHit> hit = index.Lookup(query);
    const auto end = Clock::now();
    if (digest.is_zero() || !hit || hit->text_bytes < prompt.match_bytes_min) {
      return absl::InternalError(
          absl::StrCat("a prompt that matches ", prompt.match_bytes_min, " bytes was not found"));
    }
    whole.push_back(Microseconds(hashed, end));
    sha256.push_back(Microseconds(start, hashed));
    beyond.push_back(whole.back() - sha256.back());
    rounds->matched_bytes += hit->text_bytes;
  }
  rounds->prompts += flags.prompts;
  rounds->p50.push_back(Percentile(whole, 0.5));
  rounds->p99.push_back(Percentile(whole, 0.99));
  rounds->sha256_p50.push_back(Percentile(sha256, 0.5));
  rounds->beyond_p50.push_back(Percentile(beyond, 0.5));
  rounds->beyond_p99.push_back(Percentile(beyond, 0.99));
  return absl::OkStatus();
}

struct Memory {
  double bytes_per_row = 0;
  double bytes_per_inner_cut_point = 0;
};

// Files all rows, once with and once without their inner cut points.
Memory Fill(const ChatCorpus& corpus, meta::ReadIndex* index) {
  auto ends = std::make_unique<meta::ReadIndex>();
  index->Apply(meta::StoreOpened{.address = "127.0.0.1:1"});
  index->Apply(meta::StoreReadable{.readable = true});
  for (uint32_t row = 0; row < corpus.size(); ++row) {
    meta::RowOpened opened = corpus.Row(row);
    index->Apply(opened);
    opened.cut_points.clear();
    ends->Apply(opened);
  }
  const auto of_ends = static_cast<double>(ends->memory_bytes());
  const auto inner = static_cast<double>(index->cut_points() - index->rows());
  return {.bytes_per_row = of_ends / static_cast<double>(index->rows()),
          .bytes_per_inner_cut_point =
              (static_cast<double>(index->memory_bytes()) - of_ends) / std::max(inner, 1.0)};
}

absl::StatusOr<Json> Measure(const LookupFlags& flags, Interrupt& interrupt) {
  const ChatCorpus corpus(flags.rows, kSeed);
  Progress(absl::StrCat("filing ", flags.rows, " rows"));
  const auto index = std::make_unique<meta::ReadIndex>();
  const Memory memory = Fill(corpus, index.get());
  Rounds rounds;
  for (int round = 0; round < flags.rounds; ++round) {
    if (interrupt.requested()) return absl::CancelledError("interrupted");
    KVMESH_RETURN_IF_ERROR(
        MeasureRound(corpus, *index, flags, static_cast<uint64_t>(round) + 1, &rounds));
    Progress(absl::StrCat("round ", round + 1, ": p50 ", rounds.p50.back(), " us, p99 ",
                          rounds.p99.back(), " us"));
  }
  return Json{{"p50_us", Median(rounds.p50)},
              {"p99_us", Median(rounds.p99)},
              {"p99_us_beyond_sha256", Median(rounds.beyond_p99)},
              {"p50_us_beyond_sha256", Median(rounds.beyond_p50)},
              {"p50_us_sha256", Median(rounds.sha256_p50)},
              {"rows", index->rows()},
              {"cut_points", index->cut_points()},
              {"prompt_bytes", flags.prompt_bytes},
              {"matched_bytes_mean", rounds.matched_bytes / rounds.prompts},
              {"index_bytes_per_row_of_two_slabs", memory.bytes_per_row},
              {"index_bytes_per_inner_cut_point", memory.bytes_per_inner_cut_point},
              {"rounds", flags.rounds}};
}

}  // namespace

void AddBenchLookup(CLI::App& bench, Action* chosen) {
  auto flags = std::make_shared<LookupFlags>();
  CLI::App* command = bench.add_subcommand(
      "lookup", "Longest stored prefix of a prompt, in an index of conversations");
  command->add_option("--rows", flags->rows, "Stored texts; each has several cut points")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10'000'000U));
  command->add_option("--prompt-bytes", flags->prompt_bytes, "Length of the prompts")
      ->capture_default_str()
      ->check(CLI::Range(6144U, 1U << 20));
  command->add_option("--prompts", flags->prompts, "Prompts of a round, each looked up once")
      ->capture_default_str()
      ->check(CLI::Range(100, 1'000'000));
  AddRounds(*command, flags->rounds);
  command->callback([=] {
    *chosen = [flags](Context& context) {
      return FinishBench(Measure(*flags, *context.interrupt), context);
    };
  });
}

}  // namespace kvmesh::cli

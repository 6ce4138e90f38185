#include "tools/kvmesh/generation_flags.h"

#include "common/base/hex.h"
#include "common/rpc/flags.h"

namespace kvmesh::cli {

void AddGenerationFlags(CLI::App& command, GenerationFlags& flags) {
  command.add_option("--router", flags.router, "Address of a router")
      ->required()
      ->check(rpc::Address());
  command
      .add_option("--max-tokens", flags.max_tokens,
                  "Tokens at most; 0: 256, or what the context leaves")
      ->capture_default_str();
  command.add_option("--temperature", flags.temperature,
                     "0: always the most likely token (default)");
  command.add_option("--top-k", flags.top_k, "Only the k most likely tokens; 0: off (default)");
  command.add_option("--top-p", flags.top_p,
                     "Only the most likely tokens that together reach p; 1: off (default)");
  command.add_option("--min-p", flags.min_p,
                     "Only tokens at least p times as likely as the best; 0: off (default)");
  command.add_option("--repetition-penalty", flags.repetition_penalty, "1: off (default)");
  command.add_option("--presence-penalty", flags.presence_penalty, "0: off (default)");
  command.add_option("--frequency-penalty", flags.frequency_penalty, "0: off (default)");
  command.add_option("--seed", flags.seed, "Makes a drawn answer repeatable; default: random")
      ->check(rpc::WholeNumber(0));
  command.add_option("--stop", flags.stop, "A string that ends the answer; may be given 16 times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--cache", flags.cache,
                  "on; off: no checkpoint is read or saved; stateless: nor any session state")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off", "stateless"}));
  command
      .add_option("--parent-key", flags.parent_key,
                  "finish_key of the turn before, 64 hex digits: a hint for the look-up")
      ->check([](const std::string& key) {
        const bool fits = key.size() == 64 && HexDecode(key).ok();
        return fits ? std::string() : std::string("64 hex digits are expected");
      });
  command.add_flag("--require-exact-tokens", flags.require_exact_tokens,
                   "Stored state under other token ids of the same text is a miss");
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on after an end-of-sequence token");
  command.add_option("--timeout", flags.timeout_seconds, "Seconds that the answer may take")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
}

v1::GenerationOptions ToOptions(const GenerationFlags& flags) {
  v1::GenerationOptions options;
  options.set_max_tokens(flags.max_tokens);
  v1::SamplingParams& sampling = *options.mutable_sampling();
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling.set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling.set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling.set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling.set_seed(*flags.seed);
  for (const std::string& stop : flags.stop) options.add_stop(stop);
  options.set_ignore_eos(flags.ignore_eos);
  options.set_cache(flags.cache == "stateless" ? v1::CACHE_USE_STATELESS
                    : flags.cache == "off"     ? v1::CACHE_USE_OFF
                                               : v1::CACHE_USE_ON);
  // Checked when the flag was parsed.
  if (!flags.parent_key.empty()) options.set_parent_key(HexDecode(flags.parent_key).value_or(""));
  options.set_require_exact_tokens(flags.require_exact_tokens);
  return options;
}

}  // namespace kvmesh::cli

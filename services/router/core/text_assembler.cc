#include "services/router/core/text_assembler.h"

#include <algorithm>
#include <utility>

namespace kvmesh::router {

TextAssembler::TextAssembler(const text::Tokenizer& tokenizer, TextOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), stops_(options_.stop_strings) {}

bool TextAssembler::IsEos(const forward::Output& output) const {
  if (!output.token_id.has_value()) return output.finished;
  return std::binary_search(options_.eos_token_ids.begin(), options_.eos_token_ids.end(),
                            *output.token_id);
}

TextAssembler::Step TextAssembler::Push(const forward::Output& output) {
  ++tokens_;
  absl::string_view bytes = output.piece;
  if (output.token_id.has_value()) {
    bytes = tokenizer_.IsControl(*output.token_id) ? absl::string_view()
                                                   : tokenizer_.TokenBytes(*output.token_id);
  } else if (output.finished) {
    bytes = absl::string_view();
  }
  const bool eos = !options_.ignore_eos && IsEos(output);
  Step step = Decode(eos ? absl::string_view() : bytes, eos);
  given_ += step.text.size();
  while (!ends_.empty() && ends_.front() <= given_) {
    ends_.pop_front();
    ++shown_;
  }
  return step;
}

TextAssembler::Step TextAssembler::Decode(absl::string_view bytes, bool eos) {
  const std::string text = utf8_.Push(bytes);
  decoded_ += text.size();
  ends_.push_back(decoded_);
  text::StopMatcher::Result result = stops_.Push(text);
  if (result.stopped) {
    return {std::move(result.text), FinishReason::kStop, std::move(result.stop_string)};
  }
  if (eos) return End(std::move(result.text), FinishReason::kEos);
  if (tokens_ >= options_.max_tokens) return End(std::move(result.text), FinishReason::kLength);
  return {.text = std::move(result.text)};
}

// Gives out what was held back: an incomplete character, the beginning of a stop string.
TextAssembler::Step TextAssembler::End(std::string text, FinishReason reason) {
  text::StopMatcher::Result rest = stops_.Push(utf8_.Flush());
  text += rest.text;
  if (rest.stopped) return {std::move(text), FinishReason::kStop, std::move(rest.stop_string)};
  text += stops_.Flush();
  return {.text = std::move(text), .reason = reason};
}

}  // namespace kvmesh::router

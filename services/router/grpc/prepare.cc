#include "services/router/grpc/prepare.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/forward_codec.h"

namespace kvmesh::router {
namespace {

constexpr uint32_t kDefaultMaxTokens = 256;
constexpr absl::string_view kTiers[] = {"", "ram", "ram_file", "disk"};

absl::Status AtMost(absl::string_view field, uint64_t value, uint64_t limit) {
  if (value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; at most ", limit, " is allowed"));
}

absl::Status CheckIds(const RouterModel& model, absl::string_view field,
                      const google::protobuf::RepeatedField<uint32_t>& ids) {
  KVMESH_RETURN_IF_ERROR(AtMost(absl::StrCat(field, " count"), static_cast<uint64_t>(ids.size()),
                                limits::kHistoryTokensMax));
  for (const uint32_t id : ids) {
    if (id >= model.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, " has the id ", id, "; the vocabulary ends at ", model.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

// One message as a JSON object. `json` is passed on as it is, once it is known to be one.
absl::StatusOr<std::string> MessageJson(const v1::ChatMessage& message) {
  if (message.json().empty()) {
    const nlohmann::ordered_json json = {{"role", message.role()}, {"content", message.content()}};
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  if (!message.role().empty() || !message.content().empty()) {
    return absl::InvalidArgumentError("a message has json beside role or content");
  }
  const nlohmann::json parsed = nlohmann::json::parse(message.json(), nullptr, false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError("the json of a message is no JSON object");
  }
  return message.json();
}

absl::Status CheckOptions(const RouterModel& model, const v1::GenerationOptions& options) {
  if (!v1::CacheUse_IsValid(options.cache())) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.cache has the unknown value ", options.cache()));
  }
  KVMESH_RETURN_IF_ERROR(AtMost("options.stop count", static_cast<uint64_t>(options.stop_size()),
                                limits::kStopStringsMax));
  for (const std::string& stop : options.stop()) {
    KVMESH_RETURN_IF_ERROR(AtMost("options.stop length", stop.size(), limits::kStopStringBytesMax));
  }
  if (std::find(std::begin(kTiers), std::end(kTiers), options.save_tier()) == std::end(kTiers)) {
    return absl::InvalidArgumentError(absl::StrCat("options.save_tier is '",
                                                   absl::CHexEscape(options.save_tier()),
                                                   "'; the tiers are ram, ram_file and disk"));
  }
  for (const v1::LogitBias& bias : options.sampling().logit_bias()) {
    if (bias.token_id() >= model.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("options.sampling.logit_bias has the id ",
                                                     bias.token_id(), "; the vocabulary ends at ",
                                                     model.vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> MaxTokens(uint32_t wanted, size_t prompt_tokens, uint32_t context_length) {
  const uint32_t limit = std::min(context_length, limits::kHistoryTokensMax);
  if (prompt_tokens >= limit) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt_tokens,
                                                   " tokens; the context holds ", limit,
                                                   ", the answer included"));
  }
  const auto room = static_cast<uint32_t>(limit - prompt_tokens);
  if (wanted == 0) return std::min(kDefaultMaxTokens, room);
  if (wanted > room) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.max_tokens is ", wanted, "; after a prompt of ", prompt_tokens,
                     " tokens the context of ", limit, " leaves ", room));
  }
  return wanted;
}

absl::StatusOr<CheckpointUse> DecodeCheckpointUse(const v1::GenerationOptions& options) {
  CheckpointUse use{.require_exact_tokens = options.require_exact_tokens(),
                    .save_tier = options.save_tier()};
  if (options.cache() == v1::CACHE_USE_OFF) use.off_cause = "disabled: cache off";
  if (!options.parent_key().empty()) {
    KVMESH_ASSIGN_OR_RETURN(use.parent_key,
                            Sha256Digest::FromBytes(options.parent_key(), "options.parent_key"));
  }
  return use;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> PromptIds(const RouterModel& model,
                                                const v1::GenerateRequest& request) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      KVMESH_RETURN_IF_ERROR(AtMost("text length", request.text().size(), limits::kTextBytesMax));
      return model.tokenizer->Encode(request.text(), {.add_special = request.add_special_tokens(),
                                                      .parse_special = !request.plain_text()});
    case v1::GenerateRequest::kTokenIds:
      KVMESH_RETURN_IF_ERROR(CheckIds(model, "token_ids", request.token_ids().ids()));
      return std::vector<uint32_t>(request.token_ids().ids().begin(),
                                   request.token_ids().ids().end());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the prompt is missing: neither text nor token_ids is set");
}

absl::StatusOr<RenderedChat> RenderChat(const RouterModel& model, const v1::ChatInput& input,
                                        absl::Time now) {
  if (model.chat_template == nullptr) {
    return absl::FailedPreconditionError("the model has no chat template; use Generate");
  }
  if (input.messages().empty()) return absl::InvalidArgumentError("input.messages is empty");
  KVMESH_RETURN_IF_ERROR(AtMost("input length", input.ByteSizeLong(), limits::kTextBytesMax));
  text::ChatInput chat{
      .messages_json = "[",
      .tools_json = input.tools_json(),
      .kwargs_json = input.template_kwargs_json(),
      .add_generation_prompt = !input.has_add_generation_prompt() || input.add_generation_prompt(),
      .now = absl::ToCivilSecond(now, absl::LocalTimeZone())};
  for (const v1::ChatMessage& message : input.messages()) {
    KVMESH_ASSIGN_OR_RETURN(const std::string json, MessageJson(message));
    absl::StrAppend(&chat.messages_json, chat.messages_json.size() > 1 ? "," : "", json);
  }
  chat.messages_json += "]";
  KVMESH_ASSIGN_OR_RETURN(const std::vector<text::TextSpan> spans,
                          model.chat_template->RenderSpans(chat, *model.tokenizer));
  RenderedChat rendered;
  for (const text::TextSpan& span : spans) rendered.text += span.text;
  KVMESH_RETURN_IF_ERROR(
      AtMost("rendered text length", rendered.text.size(), limits::kTextBytesMax));
  KVMESH_ASSIGN_OR_RETURN(rendered.ids, model.tokenizer->EncodeSpans(spans));
  return rendered;
}

absl::StatusOr<PreparedRequest> Prepare(const RouterModel& model, uint32_t context_length,
                                        std::vector<uint32_t> prompt,
                                        const v1::GenerationOptions& options,
                                        uint64_t random_seed) {
  KVMESH_RETURN_IF_ERROR(CheckOptions(model, options));
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  PreparedRequest request;
  KVMESH_ASSIGN_OR_RETURN(request.spec.max_tokens,
                          MaxTokens(options.max_tokens(), prompt.size(), context_length));
  KVMESH_ASSIGN_OR_RETURN(request.spec.sampling,
                          rpc::DecodeSampling(options.sampling(), random_seed));
  request.spec.prompt = std::move(prompt);
  request.spec.vocab_size = model.vocab_size;
  request.spec.stateless = options.cache() == v1::CACHE_USE_STATELESS;
  KVMESH_ASSIGN_OR_RETURN(request.spec.checkpoints, DecodeCheckpointUse(options));
  request.text = {.eos_token_ids = model.eos_token_ids,
                  .ignore_eos = options.ignore_eos(),
                  .stop_strings = {options.stop().begin(), options.stop().end()},
                  .max_tokens = request.spec.max_tokens};
  request.return_token_ids = options.return_token_ids();
  return request;
}

}  // namespace kvmesh::router

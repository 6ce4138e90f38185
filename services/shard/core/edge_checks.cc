#include "services/shard/core/edge_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "services/shard/core/restore_plan.h"

namespace kvmesh::shard {
namespace {

// What a message leaves for rows beside the ids.
constexpr uint64_t kStatelessBytesMax = limits::kMessageBytesMax - (uint64_t{8} << 20);

absl::Status Refuse(absl::string_view reason, const std::string& message) {
  return WithErrorInfo(absl::FailedPreconditionError(message), {.reason = std::string(reason)});
}

std::string Text(LayerRange range) {
  return absl::StrCat(range.begin, ":", range.end);
}

absl::Status CheckIds(absl::string_view field, absl::Span<const uint32_t> ids, uint32_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is ", ids[i], "; the vocabulary has ", vocab, " ids"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckContext(absl::string_view field, uint64_t tokens, uint32_t context) {
  if (tokens <= context) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", tokens, " tokens; the context is ", context));
}

absl::Status CheckRoute(const forward::Open& open, const HopOptions& options) {
  if (open.hops.empty()) return absl::InvalidArgumentError("hops is empty");
  const forward::HopRef& self = open.hops.front();
  if (self.instance != options.instance) {
    return Refuse(reason::kWrongInstance,
                  absl::StrCat("the frame is for instance ", self.instance.ToHex(), "; this is ",
                               options.instance.ToHex()));
  }
  if (self.layers != options.layers) {
    return Refuse(reason::kWrongLayers, absl::StrCat("the frame is for layers ", Text(self.layers),
                                                     "; this shard has ", Text(options.layers)));
  }
  if ((open.hop_index == 0) != (options.layers.begin == 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hop_index is ", open.hop_index, " for layers ", Text(options.layers)));
  }
  for (size_t i = 1; i < open.hops.size(); ++i) {
    const LayerRange layers = open.hops[i].layers;
    if (layers.begin != open.hops[i - 1].layers.end || layers.end <= layers.begin) {
      return absl::InvalidArgumentError(absl::StrCat("hops[", i, "].layers is ", Text(layers),
                                                     " after ", Text(open.hops[i - 1].layers)));
    }
  }
  if (open.hops.back().layers.end != options.layer_count) {
    return absl::InvalidArgumentError(absl::StrCat("hops end at layer ",
                                                   open.hops.back().layers.end, "; the model has ",
                                                   options.layer_count));
  }
  if (open.hops.size() > 1 && !options.peer_allowed(open.hops[1].address)) {
    return Refuse(reason::kForbiddenPeer, absl::StrCat("the next hop ", open.hops[1].address,
                                                       " is not among this shard's peers"));
  }
  return absl::OkStatus();
}

absl::Status CheckNeeds(const forward::Open& open, const HopOptions& options) {
  for (const std::string& feature : open.required_features) {
    if (std::find(options.features.begin(), options.features.end(), feature) ==
        options.features.end()) {
      return Refuse(reason::kUnknownFeature,
                    absl::StrCat("the route needs the feature '", feature,
                                 "'; this shard has: ", absl::StrJoin(options.features, ", ")));
    }
  }
  const std::string& quant = open.cache_namespace.quant;
  if (!quant.empty() && quant != options.quant) {
    return Refuse(reason::kModelMismatch, absl::StrCat("the route is for '", quant,
                                                       "'; this shard has '", options.quant, "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckRestores(const forward::Open& open, const HopOptions& options) {
  for (const forward::HopRestore& restore : open.restore) {
    if (restore.hop_index < open.hop_index ||
        restore.hop_index - open.hop_index >= open.hops.size()) {
      return absl::InvalidArgumentError(absl::StrCat("restore.hop_index is ", restore.hop_index,
                                                     "; the hops are ", open.hop_index, " to ",
                                                     open.hop_index + open.hops.size() - 1));
    }
    if (restore.hop_index != open.hop_index) continue;
    if (!options.checkpoints.enabled) {
      return Refuse(reason::kUnknownFeature, "restore is set; this shard has no checkpoints");
    }
    const uint64_t room = open.reserve_tokens.value_or(0);
    if (restore.tokens == 0 || restore.tokens > std::min<uint64_t>(open.history.size(), room)) {
      return absl::InvalidArgumentError(absl::StrCat("restore.tokens is ", restore.tokens,
                                                     "; history has ", open.history.size(),
                                                     " ids, reserve_tokens is ", room));
    }
    KVMESH_RETURN_IF_ERROR(PlanReads(restore, options.layers).status());
  }
  return absl::OkStatus();
}

// A stateless frame carries the whole sequence; its rows must fit into one message to the next hop.
absl::Status CheckStatelessSize(const forward::Compute& compute, const HopOptions& options) {
  const bool has_next = options.layers.end < options.layer_count;
  const uint64_t bytes = uint64_t{compute.tokens.size()} * options.hidden_size * sizeof(float);
  if (!has_next || bytes <= kStatelessBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a stateless frame of ", compute.tokens.size(), " rows is ", bytes,
                   " bytes between shards; at most ", kStatelessBytesMax, " fit into a message"));
}

absl::Status CheckHidden(const forward::Compute& compute, const HopOptions& options) {
  const bool first_hop = options.layers.begin == 0;
  const uint64_t wanted =
      first_hop ? 0 : uint64_t{compute.tokens.size()} * options.hidden_size * sizeof(float);
  if (compute.hidden.size() == wanted) return absl::OkStatus();
  if (first_hop) {
    return absl::InvalidArgumentError("hidden is set; the first hop embeds the tokens itself");
  }
  return absl::InvalidArgumentError(absl::StrCat("hidden has ", compute.hidden.size(), " bytes; ",
                                                 compute.tokens.size(), " rows of ",
                                                 options.hidden_size, " f32 are ", wanted));
}

absl::Status CheckMode(const forward::Compute& compute, bool stateful_stream) {
  if (compute.cache_mode == forward::CacheMode::kStateless) {
    if (compute.past_len.value_or(0) != 0) {
      return absl::InvalidArgumentError("past_len is not 0 in a stateless frame");
    }
    if (compute.tokens.empty()) return absl::InvalidArgumentError("tokens is empty");
  } else {
    if (!stateful_stream) {
      return absl::InvalidArgumentError("a stateful frame on a stream without reserve_tokens");
    }
    if (!compute.past_len.has_value()) return absl::InvalidArgumentError("past_len is missing");
    if (*compute.past_len > 0 && !compute.prefix_digest.has_value()) {
      return absl::InvalidArgumentError("prefix_digest is missing");
    }
    if (compute.tokens.empty() && *compute.past_len == 0) {
      return absl::InvalidArgumentError("tokens is empty and past_len is 0");
    }
    if (compute.cache_mode == forward::CacheMode::kDecode && compute.tokens.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens has ", compute.tokens.size(), " ids; a decode step has 1"));
    }
  }
  if (compute.cache_mode != forward::CacheMode::kPrefill && !compute.want_logits) {
    return absl::InvalidArgumentError("want_logits is not set, so the frame has no answer");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOpen(const forward::Open& open, const HopOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckRoute(open, options));
  KVMESH_RETURN_IF_ERROR(CheckNeeds(open, options));
  KVMESH_RETURN_IF_ERROR(CheckContext("history", open.history.size(), options.context_length));
  KVMESH_RETURN_IF_ERROR(
      CheckContext("reserve_tokens", open.reserve_tokens.value_or(0), options.context_length));
  if (open.prompt_tokens > open.history.size()) {
    return absl::InvalidArgumentError(absl::StrCat("prompt_token_count is ", open.prompt_tokens,
                                                   "; history has ", open.history.size(), " ids"));
  }
  KVMESH_RETURN_IF_ERROR(CheckRestores(open, options));
  for (const auto& [id, bias] : open.sampling.logit_bias) {
    KVMESH_RETURN_IF_ERROR(CheckIds("logit_bias", {id}, options.vocab_size));
  }
  return CheckIds("history", open.history, options.vocab_size);
}

absl::Status CheckCompute(const forward::Compute& compute, bool stateful_stream,
                          const HopOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckMode(compute, stateful_stream));
  if (compute.layers.begin >= compute.layers.end || compute.layers.end > options.layer_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers is ", Text(compute.layers), "; the model has ", options.layer_count));
  }
  const bool stateless = compute.cache_mode == forward::CacheMode::kStateless;
  if (stateless && compute.layers != options.layers) {
    return Refuse(reason::kWrongLayers,
                  absl::StrCat("the frame is for layers ", Text(compute.layers),
                               "; this shard has ", Text(options.layers)));
  }
  if (stateless) KVMESH_RETURN_IF_ERROR(CheckStatelessSize(compute, options));
  const uint64_t past_len = compute.past_len.value_or(0);
  KVMESH_RETURN_IF_ERROR(CheckContext("past_len", past_len, options.context_length));
  KVMESH_RETURN_IF_ERROR(
      CheckContext("past_len + rows", past_len + compute.tokens.size(), options.context_length));
  if (!stateless && compute.tokens.size() > limits::ChunkTokens(options.hidden_size)) {
    return absl::InvalidArgumentError(absl::StrCat("tokens has ", compute.tokens.size(),
                                                   " ids; a chunk has at most ",
                                                   limits::ChunkTokens(options.hidden_size)));
  }
  KVMESH_RETURN_IF_ERROR(CheckIds("tokens", compute.tokens, options.vocab_size));
  return CheckHidden(compute, options);
}

}  // namespace kvmesh::shard

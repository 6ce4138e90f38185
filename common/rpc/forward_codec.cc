#include "common/rpc/forward_codec.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/checkpoint_codec.h"

namespace kvmesh::rpc {
namespace {

constexpr size_t kNameBytesMax = 256;  // addresses, tenants, features
constexpr size_t kFeaturesMax = 64;
constexpr size_t kPieceBytesMax = 4096;
constexpr double kPenaltyMax = 1e6;

absl::Status TooLarge(absl::string_view field, uint64_t value, uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; at most ", limit, " is allowed"));
}

absl::Status Missing(absl::string_view field) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is missing"));
}

absl::Status UnknownEnum(absl::string_view field, int value) {
  return absl::InvalidArgumentError(absl::StrCat(field, " has the unknown value ", value));
}

absl::Status CheckAtMost(absl::string_view field, uint64_t value, uint64_t limit) {
  return value <= limit ? absl::OkStatus() : TooLarge(field, value, limit);
}

absl::Status CheckReal(absl::string_view field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must lie between ", low, " and ", high));
}

absl::StatusOr<LayerRange> DecodeRange(const v1::LayerRange& proto, absl::string_view field) {
  KVMESH_RETURN_IF_ERROR(CheckAtMost(absl::StrCat(field, ".end"), proto.end(), limits::kLayersMax));
  if (proto.begin() >= proto.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is [", proto.begin(), ", ", proto.end(), "); it must not be empty"));
  }
  return LayerRange{.begin = proto.begin(), .end = proto.end()};
}

absl::StatusOr<forward::HopRef> DecodeHop(const v1::Hop& proto) {
  forward::HopRef hop;
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("open.hops.address length", proto.address().size(), kNameBytesMax));
  hop.address = proto.address();
  KVMESH_ASSIGN_OR_RETURN(hop.instance,
                          InstanceId::FromBytes(proto.instance_id(), "open.hops.instance_id"));
  KVMESH_ASSIGN_OR_RETURN(hop.layers, DecodeRange(proto.layers(), "open.hops.layers"));
  return hop;
}

absl::StatusOr<std::vector<forward::HopRef>> DecodeHops(const v1::Open& proto) {
  if (proto.hops().empty()) return Missing("open.hops");
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("open.hops count", static_cast<uint64_t>(proto.hops_size()), limits::kHopsMax));
  std::vector<forward::HopRef> hops;
  for (const v1::Hop& hop : proto.hops()) {
    KVMESH_ASSIGN_OR_RETURN(hops.emplace_back(), DecodeHop(hop));
    if (hops.size() > 1 && hops[hops.size() - 2].layers.end != hops.back().layers.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("open.hops: layers end at ", hops[hops.size() - 2].layers.end,
                       " and the next hop begins at ", hops.back().layers.begin));
    }
  }
  return hops;
}

absl::StatusOr<forward::CacheNamespace> DecodeNamespace(const v1::CacheNamespace& proto) {
  forward::CacheNamespace result;
  KVMESH_ASSIGN_OR_RETURN(result.model_fp,
                          Sha256Digest::FromBytes(proto.model_fp(), "open.namespace.model_fp"));
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("open.namespace.quant length", proto.quant().size(), kNameBytesMax));
  result.quant = proto.quant();
  KVMESH_ASSIGN_OR_RETURN(
      result.ctx_params_hash,
      Sha256Digest::FromBytes(proto.ctx_params_hash(), "open.namespace.ctx_params_hash"));
  return result;
}

absl::Status CheckOpenSizes(const v1::Open& proto) {
  if (proto.epoch() == 0) return Missing("open.epoch");
  if (proto.attempt() == 0) return Missing("open.attempt");
  KVMESH_RETURN_IF_ERROR(CheckAtMost("open.hop_index", proto.hop_index(), limits::kHopsMax - 1));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("open.history length",
                                     static_cast<uint64_t>(proto.history_size()),
                                     limits::kHistoryTokensMax));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("open.prompt_token_count", proto.prompt_token_count(),
                                     static_cast<uint64_t>(proto.history_size())));
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("open.reserve_tokens", proto.reserve_tokens(), limits::kHistoryTokensMax));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("open.required_features count",
                                     static_cast<uint64_t>(proto.required_features_size()),
                                     kFeaturesMax));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("open.tenant length", proto.tenant().size(), kNameBytesMax));
  return CheckAtMost("open.trace.traceparent length", proto.trace().traceparent().size(),
                     kNameBytesMax);
}

absl::Status ProtocolMismatch(const v1::Open& proto) {
  const std::string theirs = absl::StrCat(proto.protocol_version());
  const std::string ours = absl::StrCat(limits::kProtocolVersion);
  return WithErrorInfo(
      absl::FailedPreconditionError(
          absl::StrCat("open.protocol_version is ", theirs, "; this process speaks ", ours)),
      {.reason = std::string(reason::kProtocolMismatch),
       .metadata = {
           {"hop", absl::StrCat(proto.hop_index())}, {"wanted", theirs}, {"spoken", ours}}});
}

absl::StatusOr<forward::Frame> DecodeOpen(const v1::Open& proto) {
  KVMESH_RETURN_IF_ERROR(CheckOpenSizes(proto));
  if (proto.protocol_version() != limits::kProtocolVersion) return ProtocolMismatch(proto);
  forward::Open open;
  KVMESH_ASSIGN_OR_RETURN(open.session,
                          SessionId::FromBytes(proto.session_id(), "open.session_id"));
  open.epoch = SessionEpoch{proto.epoch()};
  open.attempt = StreamAttempt{proto.attempt()};
  KVMESH_ASSIGN_OR_RETURN(open.hops, DecodeHops(proto));
  open.hop_index = proto.hop_index();
  KVMESH_ASSIGN_OR_RETURN(open.cache_namespace, DecodeNamespace(proto.namespace_()));
  for (const std::string& feature : proto.required_features()) {
    KVMESH_RETURN_IF_ERROR(
        CheckAtMost("open.required_features length", feature.size(), kNameBytesMax));
    open.required_features.push_back(feature);
  }
  // State to restore is never skipped silently: it needs a feature of its own.
  if (!proto.restore().empty()) open.required_features.push_back("checkpoints");
  KVMESH_ASSIGN_OR_RETURN(open.restore, DecodeRestores(proto));
  open.history.assign(proto.history().begin(), proto.history().end());
  open.prompt_tokens = proto.prompt_token_count();
  KVMESH_ASSIGN_OR_RETURN(open.sampling, DecodeSampling(proto.sampling(), /*seed=*/0));
  if (proto.has_reserve_tokens()) open.reserve_tokens = proto.reserve_tokens();
  open.tenant = proto.tenant();
  open.traceparent = proto.trace().traceparent();
  return open;
}

// Checks dtype, dims and length against one another; the product of hostile dims cannot wrap.
absl::Status CheckHidden(const v1::Tensor& tensor, uint64_t rows) {
  if (!v1::DType_IsValid(tensor.dtype()))
    return UnknownEnum("compute.hidden.dtype", tensor.dtype());
  if (tensor.dtype() != v1::DTYPE_F32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute.hidden.dtype is ", v1::DType_Name(tensor.dtype()), "; it must be DTYPE_F32"));
  }
  if (tensor.dims_size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("compute.hidden has ", tensor.dims_size(),
                                                   " dims; it must have 2: [rows, hidden]"));
  }
  if (tensor.dims(0) != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute.hidden has ", tensor.dims(0), " rows for ", rows, " tokens"));
  }
  const uint64_t width = tensor.dims(1);
  if (width == 0 || width > static_cast<uint64_t>(limits::kMessageBytesMax) / 4) {
    return absl::InvalidArgumentError(absl::StrCat("compute.hidden.dims[1] is ", width));
  }
  if (rows * width * 4 != tensor.data().size()) {
    return absl::InvalidArgumentError(absl::StrCat("compute.hidden.data has ", tensor.data().size(),
                                                   " bytes; its dims want ", rows * width * 4));
  }
  return absl::OkStatus();
}

absl::StatusOr<forward::CacheMode> DecodeMode(v1::CacheMode mode) {
  switch (mode) {
    case v1::CACHE_MODE_UNSPECIFIED:
      return forward::CacheMode::kStateless;
    case v1::CACHE_MODE_PREFILL:
      return forward::CacheMode::kPrefill;
    case v1::CACHE_MODE_DECODE:
      return forward::CacheMode::kDecode;
    default:
      return UnknownEnum("compute.cache_mode", mode);
  }
}

absl::Status CheckRows(const v1::Compute& proto, forward::CacheMode mode) {
  const auto rows = static_cast<uint64_t>(proto.tokens_size());
  switch (mode) {
    case forward::CacheMode::kStateless:
      if (proto.has_past_len())
        return absl::InvalidArgumentError("compute.past_len is set in a stateless frame");
      if (rows == 0) return Missing("compute.tokens");
      return CheckAtMost("compute.tokens count", rows, limits::kHistoryTokensMax);
    case forward::CacheMode::kDecode:
      if (rows != 1)
        return absl::InvalidArgumentError(
            absl::StrCat("compute.tokens has ", rows, " ids; a decode frame has 1"));
      break;
    case forward::CacheMode::kPrefill:
      KVMESH_RETURN_IF_ERROR(CheckAtMost("compute.tokens count", rows, limits::kChunkTokensMax));
      break;
  }
  if (!proto.has_past_len()) return Missing("compute.past_len");
  if (!proto.has_prefix_digest()) return Missing("compute.prefix_digest");
  return CheckAtMost("compute.past_len", proto.past_len(), limits::kHistoryTokensMax - rows);
}

absl::StatusOr<forward::Frame> DecodeCompute(v1::Compute&& proto) {
  forward::Compute compute;
  KVMESH_ASSIGN_OR_RETURN(compute.cache_mode, DecodeMode(proto.cache_mode()));
  KVMESH_RETURN_IF_ERROR(CheckRows(proto, compute.cache_mode));
  KVMESH_ASSIGN_OR_RETURN(compute.layers, DecodeRange(proto.layers(), "compute.layers"));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("compute.step", proto.step(), limits::kHistoryTokensMax));
  if (proto.has_hidden()) {
    KVMESH_RETURN_IF_ERROR(CheckHidden(proto.hidden(), static_cast<uint64_t>(proto.tokens_size())));
    compute.hidden = std::move(*proto.mutable_hidden()->mutable_data());
  }
  if (proto.has_past_len()) compute.past_len = proto.past_len();
  if (proto.has_prefix_digest()) compute.prefix_digest = proto.prefix_digest();
  compute.step = proto.step();
  compute.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  compute.want_logits = proto.want_logits();
  return compute;
}

absl::StatusOr<forward::Frame> DecodeSave(const v1::Save& proto) {
  forward::Save save;
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("save.at_tokens", proto.at_tokens(), limits::kHistoryTokensMax));
  KVMESH_RETURN_IF_ERROR(CheckAtMost(
      "save.targets count", static_cast<uint64_t>(proto.targets_size()), limits::kHopsMax));
  save.at_tokens = proto.at_tokens();
  KVMESH_ASSIGN_OR_RETURN(save.write_id, WriteId::FromBytes(proto.write_id(), "save.write_id"));
  if (proto.reason() < v1::SAVE_REASON_COLD || proto.reason() > v1::SAVE_REASON_SHUTDOWN) {
    return UnknownEnum("save.reason", proto.reason());
  }
  save.reason = static_cast<forward::SaveReason>(proto.reason() - v1::SAVE_REASON_COLD);
  for (const v1::SaveTarget& target : proto.targets()) {
    KVMESH_RETURN_IF_ERROR(CheckAtMost("save.targets.store_address length",
                                       target.store_address().size(), kNameBytesMax));
    save.targets.emplace_back(target.hop_index(), target.store_address());
  }
  return save;
}

absl::StatusOr<forward::Frame> DecodeClose(const v1::Close& proto) {
  switch (proto.disposition()) {
    case v1::Close::DISPOSITION_DROP:
      return forward::Close{forward::Disposition::kDrop};
    case v1::Close::DISPOSITION_KEEP:
      return forward::Close{forward::Disposition::kKeep};
    default:
      return UnknownEnum("close.disposition", proto.disposition());
  }
}

forward::TokenLogprob DecodeLogprob(const v1::TokenLogprob& proto) {
  return {.token_id = proto.token_id(), .logprob = proto.logprob(), .piece = proto.piece()};
}

absl::StatusOr<forward::Answer> DecodeOutput(v1::Output&& proto) {
  KVMESH_RETURN_IF_ERROR(CheckAtMost("output.piece length", proto.piece().size(), kPieceBytesMax));
  forward::Output output{.step = proto.step(),
                         .piece = std::move(*proto.mutable_piece()),
                         .finished = proto.finished(),
                         .held = proto.held()};
  if (proto.has_token_id()) output.token_id = proto.token_id();
  if (proto.has_logprobs()) {
    KVMESH_RETURN_IF_ERROR(CheckAtMost("output.logprobs.top count",
                                       static_cast<uint64_t>(proto.logprobs().top_size()),
                                       limits::kTopLogprobsMax));
    forward::Logprobs logprobs{.chosen = DecodeLogprob(proto.logprobs().chosen())};
    for (const v1::TokenLogprob& top : proto.logprobs().top())
      logprobs.top.push_back(DecodeLogprob(top));
    output.logprobs = std::move(logprobs);
  }
  return output;
}

absl::StatusOr<forward::Answer> DecodeSaveState(const v1::SaveState& proto) {
  forward::SaveState state{.hop_index = proto.hop_index(), .cause = proto.cause()};
  KVMESH_ASSIGN_OR_RETURN(state.write_id,
                          WriteId::FromBytes(proto.write_id(), "save_state.write_id"));
  if (proto.state() < v1::SaveState::STATE_STARTED ||
      proto.state() > v1::SaveState::STATE_DROPPED) {
    return UnknownEnum("save_state.state", proto.state());
  }
  state.state =
      static_cast<forward::SaveState::State>(proto.state() - v1::SaveState::STATE_STARTED);
  return state;
}

}  // namespace

absl::StatusOr<forward::SamplingOptions> DecodeSampling(const v1::SamplingParams& params,
                                                        uint64_t seed) {
  forward::SamplingOptions options;
  options.temperature = params.temperature();
  options.top_k = params.top_k();
  if (params.has_top_p()) options.top_p = params.top_p();
  options.min_p = params.min_p();
  if (params.has_repetition_penalty()) options.repetition_penalty = params.repetition_penalty();
  options.presence_penalty = params.presence_penalty();
  options.frequency_penalty = params.frequency_penalty();
  options.seed = params.has_seed() ? params.seed() : seed;
  options.logprobs = params.logprobs();
  options.top_logprobs = params.top_logprobs();
  KVMESH_RETURN_IF_ERROR(CheckReal("sampling.temperature", options.temperature, 0, 1000));
  KVMESH_RETURN_IF_ERROR(CheckReal("sampling.top_p", options.top_p, 0, kPenaltyMax));
  KVMESH_RETURN_IF_ERROR(CheckReal("sampling.min_p", options.min_p, 0, 1));
  KVMESH_RETURN_IF_ERROR(
      CheckReal("sampling.repetition_penalty", options.repetition_penalty, 1e-6, kPenaltyMax));
  KVMESH_RETURN_IF_ERROR(
      CheckReal("sampling.presence_penalty", options.presence_penalty, -kPenaltyMax, kPenaltyMax));
  KVMESH_RETURN_IF_ERROR(CheckReal("sampling.frequency_penalty", options.frequency_penalty,
                                   -kPenaltyMax, kPenaltyMax));
  KVMESH_RETURN_IF_ERROR(
      CheckAtMost("sampling.top_logprobs", options.top_logprobs, limits::kTopLogprobsMax));
  KVMESH_RETURN_IF_ERROR(CheckAtMost("sampling.logit_bias count",
                                     static_cast<uint64_t>(params.logit_bias_size()),
                                     limits::kLogitBiasMax));
  for (const v1::LogitBias& bias : params.logit_bias()) {
    KVMESH_RETURN_IF_ERROR(CheckReal("sampling.logit_bias.bias", bias.bias(), -1e9, 1e9));
    options.logit_bias.emplace_back(bias.token_id(), bias.bias());
  }
  return options;
}

absl::StatusOr<forward::Frame> DecodeFrame(v1::ForwardRequest&& request) {
  switch (request.frame_case()) {
    case v1::ForwardRequest::kOpen:
      return DecodeOpen(request.open());
    case v1::ForwardRequest::kCompute:
      return DecodeCompute(std::move(*request.mutable_compute()));
    case v1::ForwardRequest::kSave:
      return DecodeSave(request.save());
    case v1::ForwardRequest::kClose:
      return DecodeClose(request.close());
    case v1::ForwardRequest::FRAME_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the frame is empty, or of a kind this process does not know");
}

absl::StatusOr<forward::Answer> DecodeAnswer(v1::ForwardResponse&& response) {
  switch (response.answer_case()) {
    case v1::ForwardResponse::kOpened: {
      const v1::Opened& opened = response.opened();
      KVMESH_RETURN_IF_ERROR(
          CheckAtMost("opened.hop_index", opened.hop_index(), limits::kHopsMax - 1));
      return forward::Opened{.hop_index = opened.hop_index(),
                             .held = opened.held(),
                             .last_step = opened.last_step(),
                             .restored = opened.restored(),
                             .epoch = SessionEpoch{opened.epoch()}};
    }
    case v1::ForwardResponse::kAck:
      return forward::Ack{.step = response.ack().step(), .past_len = response.ack().past_len()};
    case v1::ForwardResponse::kOutput:
      return DecodeOutput(std::move(*response.mutable_output()));
    case v1::ForwardResponse::kSaveState:
      return DecodeSaveState(response.save_state());
    case v1::ForwardResponse::ANSWER_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the answer is empty, or of a kind this process does not know");
}

}  // namespace kvmesh::rpc

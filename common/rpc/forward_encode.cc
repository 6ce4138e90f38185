#include <utility>

#include "common/base/limits.h"
#include "common/rpc/checkpoint_codec.h"
#include "common/rpc/forward_codec.h"

namespace kvmesh::rpc {
namespace {

void EncodeRange(const LayerRange& range, v1::LayerRange* proto) {
  proto->set_begin(range.begin);
  proto->set_end(range.end);
}

void SetBytes(std::string* field, absl::string_view bytes) {
  field->assign(bytes.data(), bytes.size());
}

void EncodeSampling(const forward::SamplingOptions& options, v1::SamplingParams* proto) {
  proto->set_temperature(static_cast<float>(options.temperature));
  proto->set_top_k(options.top_k);
  proto->set_top_p(static_cast<float>(options.top_p));
  proto->set_min_p(static_cast<float>(options.min_p));
  proto->set_repetition_penalty(static_cast<float>(options.repetition_penalty));
  proto->set_presence_penalty(static_cast<float>(options.presence_penalty));
  proto->set_frequency_penalty(static_cast<float>(options.frequency_penalty));
  for (const auto& [token_id, bias] : options.logit_bias) {
    v1::LogitBias* entry = proto->add_logit_bias();
    entry->set_token_id(token_id);
    entry->set_bias(bias);
  }
  proto->set_seed(options.seed);
  proto->set_logprobs(options.logprobs);
  proto->set_top_logprobs(options.top_logprobs);
}

void EncodeOpen(const forward::Open& open, v1::Open* proto) {
  SetBytes(proto->mutable_session_id(), open.session.bytes());
  proto->set_epoch(static_cast<uint64_t>(open.epoch));
  proto->set_attempt(static_cast<uint64_t>(open.attempt));
  for (const forward::HopRef& hop : open.hops) {
    v1::Hop* entry = proto->add_hops();
    entry->set_address(hop.address);
    SetBytes(entry->mutable_instance_id(), hop.instance.bytes());
    EncodeRange(hop.layers, entry->mutable_layers());
  }
  proto->set_hop_index(open.hop_index);
  SetBytes(proto->mutable_namespace_()->mutable_model_fp(), open.cache_namespace.model_fp.bytes());
  proto->mutable_namespace_()->set_quant(open.cache_namespace.quant);
  SetBytes(proto->mutable_namespace_()->mutable_ctx_params_hash(),
           open.cache_namespace.ctx_params_hash.bytes());
  proto->set_protocol_version(limits::kProtocolVersion);
  for (const std::string& feature : open.required_features) proto->add_required_features(feature);
  proto->mutable_history()->Add(open.history.begin(), open.history.end());
  proto->set_prompt_token_count(open.prompt_tokens);
  EncodeSampling(open.sampling, proto->mutable_sampling());
  EncodeRestores(open.restore, proto);
  if (open.reserve_tokens.has_value()) proto->set_reserve_tokens(*open.reserve_tokens);
  proto->set_tenant(open.tenant);
  if (!open.traceparent.empty()) proto->mutable_trace()->set_traceparent(open.traceparent);
}

v1::CacheMode EncodeMode(forward::CacheMode mode) {
  switch (mode) {
    case forward::CacheMode::kStateless:
      return v1::CACHE_MODE_UNSPECIFIED;
    case forward::CacheMode::kPrefill:
      return v1::CACHE_MODE_PREFILL;
    case forward::CacheMode::kDecode:
      return v1::CACHE_MODE_DECODE;
  }
  return v1::CACHE_MODE_UNSPECIFIED;
}

void EncodeCompute(forward::Compute&& compute, uint64_t hidden_size, v1::Compute* proto) {
  proto->set_cache_mode(EncodeMode(compute.cache_mode));
  if (compute.past_len.has_value()) proto->set_past_len(*compute.past_len);
  EncodeRange(compute.layers, proto->mutable_layers());
  proto->set_step(compute.step);
  proto->mutable_tokens()->Add(compute.tokens.begin(), compute.tokens.end());
  if (!compute.hidden.empty()) {
    v1::Tensor* hidden = proto->mutable_hidden();
    hidden->set_dtype(v1::DTYPE_F32);
    hidden->add_dims(compute.tokens.size());
    hidden->add_dims(hidden_size);
    hidden->set_data(std::move(compute.hidden));
  }
  if (compute.prefix_digest.has_value()) proto->set_prefix_digest(*compute.prefix_digest);
  proto->set_want_logits(compute.want_logits);
}

void EncodeSave(const forward::Save& save, v1::Save* proto) {
  proto->set_at_tokens(save.at_tokens);
  SetBytes(proto->mutable_write_id(), save.write_id.bytes());
  proto->set_reason(
      static_cast<v1::SaveReason>(v1::SAVE_REASON_COLD + static_cast<int>(save.reason)));
  for (const auto& [hop_index, address] : save.targets) {
    v1::SaveTarget* target = proto->add_targets();
    target->set_hop_index(hop_index);
    target->set_store_address(address);
  }
}

void EncodeLogprob(const forward::TokenLogprob& logprob, v1::TokenLogprob* proto) {
  proto->set_token_id(logprob.token_id);
  proto->set_logprob(static_cast<float>(logprob.logprob));
  proto->set_piece(logprob.piece);
}

void EncodeOutput(forward::Output&& output, v1::Output* proto) {
  proto->set_step(output.step);
  if (output.token_id.has_value()) proto->set_token_id(*output.token_id);
  proto->set_piece(std::move(output.piece));
  if (output.logprobs.has_value()) {
    EncodeLogprob(output.logprobs->chosen, proto->mutable_logprobs()->mutable_chosen());
    for (const forward::TokenLogprob& top : output.logprobs->top) {
      EncodeLogprob(top, proto->mutable_logprobs()->add_top());
    }
  }
  proto->set_finished(output.finished);
  proto->set_held(output.held);
}

void EncodeSaveState(const forward::SaveState& state, v1::SaveState* proto) {
  proto->set_hop_index(state.hop_index);
  SetBytes(proto->mutable_write_id(), state.write_id.bytes());
  proto->set_state(static_cast<v1::SaveState::State>(v1::SaveState::STATE_STARTED +
                                                     static_cast<int>(state.state)));
  proto->set_cause(state.cause);
}

}  // namespace

v1::ForwardRequest EncodeFrame(forward::Frame&& frame, uint64_t hidden_size) {
  v1::ForwardRequest request;
  if (auto* open = std::get_if<forward::Open>(&frame)) {
    EncodeOpen(*open, request.mutable_open());
  } else if (auto* compute = std::get_if<forward::Compute>(&frame)) {
    EncodeCompute(std::move(*compute), hidden_size, request.mutable_compute());
  } else if (auto* save = std::get_if<forward::Save>(&frame)) {
    EncodeSave(*save, request.mutable_save());
  } else {
    request.mutable_close()->set_disposition(std::get<forward::Close>(frame).disposition ==
                                                     forward::Disposition::kDrop
                                                 ? v1::Close::DISPOSITION_DROP
                                                 : v1::Close::DISPOSITION_KEEP);
  }
  return request;
}

v1::ForwardResponse EncodeAnswer(forward::Answer&& answer) {
  v1::ForwardResponse response;
  if (auto* opened = std::get_if<forward::Opened>(&answer)) {
    v1::Opened* proto = response.mutable_opened();
    proto->set_hop_index(opened->hop_index);
    proto->set_held(opened->held);
    proto->set_last_step(opened->last_step);
    proto->set_restored(opened->restored);
    proto->set_epoch(static_cast<uint64_t>(opened->epoch));
  } else if (auto* ack = std::get_if<forward::Ack>(&answer)) {
    response.mutable_ack()->set_step(ack->step);
    response.mutable_ack()->set_past_len(ack->past_len);
  } else if (auto* output = std::get_if<forward::Output>(&answer)) {
    EncodeOutput(std::move(*output), response.mutable_output());
  } else {
    EncodeSaveState(std::get<forward::SaveState>(answer), response.mutable_save_state());
  }
  return response;
}

}  // namespace kvmesh::rpc

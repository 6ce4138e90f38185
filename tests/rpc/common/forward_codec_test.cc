#include "common/rpc/forward_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/error_info.h"
#include "common/base/limits.h"

namespace kvmesh::rpc {
namespace {

forward::Open SoundOpen() {
  forward::Open open;
  open.session = RandomId<SessionId>();
  open.epoch = SessionEpoch{3};
  open.attempt = StreamAttempt{4};
  open.hops = {{.address = "127.0.0.1:1", .instance = RandomId<InstanceId>(), .layers = {0, 2}},
               {.address = "127.0.0.1:2", .instance = RandomId<InstanceId>(), .layers = {2, 5}}};
  open.history = {1, 2, 3};
  open.prompt_tokens = 2;
  open.cache_namespace.quant = "q4_1/kv-f32";
  open.sampling.temperature = 0.5;
  open.sampling.top_p = 0.25;
  open.sampling.seed = 99;
  open.sampling.logit_bias = {{7, -1.5f}};
  open.reserve_tokens = 40;
  open.tenant = "t";
  return open;
}

forward::Compute SoundCompute() {
  forward::Compute compute;
  compute.cache_mode = forward::CacheMode::kPrefill;
  compute.past_len = 0;
  compute.prefix_digest = 5;
  compute.layers = {0, 2};
  compute.tokens = {1, 2};
  compute.hidden = std::string(2 * 4 * 4, 'h');
  compute.want_logits = true;
  return compute;
}

TEST(ForwardCodec, AnOpenComesBackWhole) {
  const forward::Open open = SoundOpen();
  const auto frame = DecodeFrame(EncodeFrame(open, 4));
  ASSERT_TRUE(frame.ok()) << frame.status();
  const auto& back = std::get<forward::Open>(*frame);
  EXPECT_EQ(back.session, open.session);
  EXPECT_EQ(back.epoch, open.epoch);
  EXPECT_EQ(back.attempt, open.attempt);
  EXPECT_EQ(back.hops, open.hops);
  EXPECT_EQ(back.history, open.history);
  EXPECT_EQ(back.prompt_tokens, 2u);
  EXPECT_EQ(back.cache_namespace, open.cache_namespace);
  EXPECT_EQ(back.sampling.top_p, 0.25);
  EXPECT_EQ(back.sampling.seed, 99u);
  EXPECT_EQ(back.sampling.logit_bias, open.sampling.logit_bias);
  EXPECT_EQ(back.reserve_tokens, open.reserve_tokens);
  EXPECT_EQ(back.tenant, "t");
}

TEST(ForwardCodec, AComputeComesBackWhole) {
  const forward::Compute compute = SoundCompute();
  const auto frame = DecodeFrame(EncodeFrame(compute, 4));
  ASSERT_TRUE(frame.ok()) << frame.status();
  const auto& back = std::get<forward::Compute>(*frame);
  EXPECT_EQ(back.cache_mode, forward::CacheMode::kPrefill);
  EXPECT_EQ(back.past_len, compute.past_len);
  EXPECT_EQ(back.prefix_digest, compute.prefix_digest);
  EXPECT_EQ(back.layers, compute.layers);
  EXPECT_EQ(back.tokens, compute.tokens);
  EXPECT_EQ(back.hidden, compute.hidden);
  EXPECT_TRUE(back.want_logits);
}

TEST(ForwardCodec, AnAnswerOfEachKindComesBackWhole) {
  const auto opened = DecodeAnswer(EncodeAnswer(
      forward::Opened{.hop_index = 1, .held = 9, .last_step = 2, .epoch = SessionEpoch{3}}));
  EXPECT_EQ(std::get<forward::Opened>(*opened).held, 9u);
  const auto ack = DecodeAnswer(EncodeAnswer(forward::Ack{.step = 4, .past_len = 5}));
  EXPECT_EQ(std::get<forward::Ack>(*ack).past_len, 5u);
  forward::Output output{
      .step = 6, .token_id = 0, .piece = "\xf0\x9f", .finished = true, .held = 7};
  output.logprobs = forward::Logprobs{.chosen = {.token_id = 0, .logprob = -0.5, .piece = "\xf0"},
                                      .top = {{.token_id = 8}}};
  const auto out = DecodeAnswer(EncodeAnswer(std::move(output)));
  EXPECT_EQ(std::get<forward::Output>(*out).token_id, 0u);
  EXPECT_EQ(std::get<forward::Output>(*out).piece, "\xf0\x9f");
  EXPECT_EQ(std::get<forward::Output>(*out).logprobs->top.size(), 1u);
  const auto no_id = DecodeAnswer(EncodeAnswer(forward::Output{.step = 1, .piece = "x"}));
  EXPECT_FALSE(std::get<forward::Output>(*no_id).token_id.has_value());
  const auto save = DecodeAnswer(EncodeAnswer(forward::SaveState{
      .hop_index = 2, .state = forward::SaveState::State::kDropped, .cause = "c"}));
  EXPECT_EQ(std::get<forward::SaveState>(*save).state, forward::SaveState::State::kDropped);
}

TEST(ForwardCodec, SaveAndCloseComeBackWhole) {
  const auto save = DecodeFrame(EncodeFrame(
      forward::Save{
          .at_tokens = 3, .reason = forward::SaveReason::kShutdown, .targets = {{1, "a"}}},
      4));
  EXPECT_EQ(std::get<forward::Save>(*save).reason, forward::SaveReason::kShutdown);
  EXPECT_EQ(std::get<forward::Save>(*save).targets.size(), 1u);
  const auto close = DecodeFrame(EncodeFrame(forward::Close{forward::Disposition::kKeep}, 4));
  EXPECT_EQ(std::get<forward::Close>(*close).disposition, forward::Disposition::kKeep);
}

// Each case spoils a sound frame in one field; the message must name that field.
struct BadFrame {
  const char* name;
  std::function<void(v1::ForwardRequest&)> spoil;
};

std::vector<BadFrame> BadOpens() {
  return {
      {"open.session_id", [](auto& r) { r.mutable_open()->set_session_id("short"); }},
      {"open.epoch", [](auto& r) { r.mutable_open()->set_epoch(0); }},
      {"open.attempt", [](auto& r) { r.mutable_open()->set_attempt(0); }},
      {"open.hops", [](auto& r) { r.mutable_open()->clear_hops(); }},
      {"open.hops count",
       [](auto& r) {
         for (int i = 0; i < 70; ++i) *r.mutable_open()->add_hops() = r.open().hops(0);
       }},
      {"open.hops.instance_id",
       [](auto& r) { r.mutable_open()->mutable_hops(0)->set_instance_id(""); }},
      {"open.hops.layers",
       [](auto& r) { r.mutable_open()->mutable_hops(1)->mutable_layers()->set_begin(5); }},
      {"open.hops: layers",
       [](auto& r) { r.mutable_open()->mutable_hops(1)->mutable_layers()->set_begin(3); }},
      {"open.hops.address",
       [](auto& r) { r.mutable_open()->mutable_hops(0)->set_address(std::string(257, 'a')); }},
      {"open.hop_index", [](auto& r) { r.mutable_open()->set_hop_index(64); }},
      {"open.prompt_token_count", [](auto& r) { r.mutable_open()->set_prompt_token_count(4); }},
      {"open.reserve_tokens", [](auto& r) { r.mutable_open()->set_reserve_tokens(~0ull); }},
      {"open.namespace.model_fp",
       [](auto& r) { r.mutable_open()->mutable_namespace_()->set_model_fp("x"); }},
      {"open.namespace.ctx_params_hash",
       [](auto& r) { r.mutable_open()->mutable_namespace_()->set_ctx_params_hash(""); }},
      {"sampling.temperature",
       [](auto& r) {
         r.mutable_open()->mutable_sampling()->set_temperature(
             std::numeric_limits<float>::quiet_NaN());
       }},
      {"sampling.temperature",
       [](auto& r) { r.mutable_open()->mutable_sampling()->set_temperature(-1); }},
      {"sampling.top_p", [](auto& r) { r.mutable_open()->mutable_sampling()->set_top_p(-0.1f); }},
      {"sampling.min_p", [](auto& r) { r.mutable_open()->mutable_sampling()->set_min_p(1.5f); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_open()->mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.top_logprobs",
       [](auto& r) { r.mutable_open()->mutable_sampling()->set_top_logprobs(21); }},
      {"sampling.logit_bias count",
       [](auto& r) {
         for (int i = 0; i < 1025; ++i) r.mutable_open()->mutable_sampling()->add_logit_bias();
       }},
      {"sampling.logit_bias.bias",
       [](auto& r) {
         r.mutable_open()->mutable_sampling()->add_logit_bias()->set_bias(
             std::numeric_limits<float>::infinity());
       }},
  };
}

std::vector<BadFrame> BadComputes() {
  return {
      {"compute.cache_mode",
       [](auto& r) { r.mutable_compute()->set_cache_mode(static_cast<v1::CacheMode>(77)); }},
      {"compute.past_len", [](auto& r) { r.mutable_compute()->clear_past_len(); }},
      {"compute.past_len",
       [](auto& r) { r.mutable_compute()->set_past_len(static_cast<uint64_t>(-1)); }},
      {"compute.prefix_digest", [](auto& r) { r.mutable_compute()->clear_prefix_digest(); }},
      {"compute.layers", [](auto& r) { r.mutable_compute()->clear_layers(); }},
      {"compute.layers.end",
       [](auto& r) { r.mutable_compute()->mutable_layers()->set_end(1u << 31); }},
      {"compute.step", [](auto& r) { r.mutable_compute()->set_step(1u << 31); }},
      {"compute.tokens count",
       [](auto& r) {
         for (int i = 0; i < 512; ++i) r.mutable_compute()->add_tokens(1);
       }},
      {"compute.tokens has 2",
       [](auto& r) { r.mutable_compute()->set_cache_mode(v1::CACHE_MODE_DECODE); }},
      {"compute.past_len",
       [](auto& r) { r.mutable_compute()->set_cache_mode(v1::CACHE_MODE_UNSPECIFIED); }},
      {"compute.hidden.dtype",
       [](auto& r) { r.mutable_compute()->mutable_hidden()->set_dtype(v1::DTYPE_F16); }},
      {"compute.hidden.dtype",
       [](auto& r) {
         r.mutable_compute()->mutable_hidden()->set_dtype(static_cast<v1::DType>(9));
       }},
      {"compute.hidden has 3 dims",
       [](auto& r) { r.mutable_compute()->mutable_hidden()->add_dims(1); }},
      {"compute.hidden has 3 rows",
       [](auto& r) { r.mutable_compute()->mutable_hidden()->set_dims(0, 3); }},
      {"compute.hidden.dims[1]",
       [](auto& r) { r.mutable_compute()->mutable_hidden()->set_dims(1, 1ull << 62); }},
      {"compute.hidden.data",
       [](auto& r) { r.mutable_compute()->mutable_hidden()->set_data("short"); }},
  };
}

void ExpectRefused(const forward::Frame& sound, const BadFrame& bad) {
  forward::Frame copy = sound;
  v1::ForwardRequest request = EncodeFrame(std::move(copy), 4);
  bad.spoil(request);
  const absl::Status status = DecodeFrame(std::move(request)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.name;
  EXPECT_NE(std::string(status.message()).find(bad.name), std::string::npos) << status;
}

TEST(ForwardCodec, ASpoiledFieldIsRefusedByName) {
  for (const BadFrame& bad : BadOpens()) ExpectRefused(SoundOpen(), bad);
  for (const BadFrame& bad : BadComputes()) ExpectRefused(SoundCompute(), bad);
}

TEST(ForwardCodec, AnEmptyFrameOrAnUnknownEnumIsRefused) {
  EXPECT_FALSE(DecodeFrame(v1::ForwardRequest()).ok());
  EXPECT_FALSE(DecodeAnswer(v1::ForwardResponse()).ok());
  v1::ForwardRequest close;
  close.mutable_close();
  EXPECT_FALSE(DecodeFrame(std::move(close)).ok());
  v1::ForwardRequest save = EncodeFrame(forward::Save{}, 4);
  save.mutable_save()->set_reason(static_cast<v1::SaveReason>(6));
  EXPECT_FALSE(DecodeFrame(std::move(save)).ok());
}

TEST(ForwardCodec, AnotherProtocolVersionShowsBoth) {
  v1::ForwardRequest request = EncodeFrame(SoundOpen(), 4);
  request.mutable_open()->set_protocol_version(9);
  const absl::Status status = DecodeFrame(std::move(request)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorInfoOf(status)->metadata.at("wanted"), "9");
  EXPECT_EQ(ErrorInfoOf(status)->metadata.at("spoken"), "1");
}

TEST(ForwardCodec, ARestoreNeedsTheFeatureCheckpoints) {
  v1::ForwardRequest request = EncodeFrame(SoundOpen(), 4);
  v1::HopRestore& restore = *request.mutable_open()->add_restore();
  restore.set_tokens(5);
  v1::SlabRef& slab = *restore.add_slabs();
  slab.set_store_address("127.0.0.1:1");
  slab.set_key(std::string(32, 'k'));
  slab.mutable_layers()->set_end(1);
  slab.set_write_id(std::string(16, 'w'));
  slab.set_tokens_sha256(std::string(32, 't'));
  const auto frame = DecodeFrame(std::move(request));
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(std::get<forward::Open>(*frame).required_features,
            std::vector<std::string>{"checkpoints"});
}

}  // namespace
}  // namespace kvmesh::rpc

// Protos of a Forward stream to checked plain frames, and back. Every limit of common/base/limits.h
// that concerns a frame by itself is enforced here; what depends on the model (vocabulary, hidden
// size, layer range) is the shard's.
#pragma once

#include "absl/status/statusor.h"
#include "common/forward/frames.h"
#include "kvmesh/v1/shard.pb.h"

namespace kvmesh::rpc {

// InvalidArgument names the field, its value and the limit; FailedPrecondition PROTOCOL_MISMATCH
// shows both versions. Consumes `request` (hidden rows are moved, not copied).
absl::StatusOr<forward::Frame> DecodeFrame(v1::ForwardRequest&& request);
absl::StatusOr<forward::Answer> DecodeAnswer(v1::ForwardResponse&& response);

// `hidden_size` shapes the hidden tensor of a Compute frame that carries one.
v1::ForwardRequest EncodeFrame(forward::Frame&& frame, uint64_t hidden_size);
v1::ForwardResponse EncodeAnswer(forward::Answer&& answer);

// SamplingParams of a client's request or of an Open. InvalidArgument names the field.
// `seed` is used when the message has none.
absl::StatusOr<forward::SamplingOptions> DecodeSampling(const v1::SamplingParams& params,
                                                        uint64_t seed);

}  // namespace kvmesh::rpc

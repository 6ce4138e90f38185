#include "common/model/hf_rope.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/printable.h"

namespace kvmesh::model {
namespace {

using Json = nlohmann::json;

constexpr double kDefaultTheta =
    10000.0;  // of the first Llama, whose config.json has no key for it

absl::StatusOr<std::string> ReadRopeType(const JsonObject& block) {
  if (!block.Has("rope_type")) return block.StringOr("type", "default");
  KVMESH_ASSIGN_OR_RETURN(const std::string rope_type, block.String("rope_type"));
  KVMESH_ASSIGN_OR_RETURN(const std::string older, block.StringOr("type", rope_type));
  if (older != rope_type) {
    return absl::InvalidArgumentError(absl::StrCat(
        block.Name("rope_type"), " is ", Printable(rope_type), ", but type is ", Printable(older)));
  }
  return rope_type;
}

absl::Status ReadLlama3(const JsonObject& block, RopeConfig* rope) {
  rope->scaling = RopeScaling::kLlama3;
  KVMESH_ASSIGN_OR_RETURN(rope->factor, block.Positive("factor"));
  KVMESH_ASSIGN_OR_RETURN(rope->low_freq_factor, block.Positive("low_freq_factor"));
  KVMESH_ASSIGN_OR_RETURN(rope->high_freq_factor, block.Positive("high_freq_factor"));
  KVMESH_ASSIGN_OR_RETURN(rope->original_context,
                          block.Positive("original_max_position_embeddings"));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat(block.Name("high_freq_factor"), " is ", rope->high_freq_factor,
                     ", not above low_freq_factor ", rope->low_freq_factor));
  }
  return absl::OkStatus();
}

absl::Status ReadScaling(const JsonObject& block, RopeConfig* rope) {
  KVMESH_ASSIGN_OR_RETURN(const std::string rope_type, ReadRopeType(block));
  if (rope_type == "default") return absl::OkStatus();
  if (rope_type == "llama3") return ReadLlama3(block, rope);
  if (rope_type == "linear") {
    rope->scaling = RopeScaling::kLinear;
    KVMESH_ASSIGN_OR_RETURN(rope->factor, block.Positive("factor"));
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(block.Name("rope_type"), ": rope scaling ",
                                               Printable(rope_type), " is not supported"));
}

// One of the two blocks, over what the top level says.
absl::StatusOr<RopeConfig> ReadBlock(const JsonObject& config, absl::string_view key,
                                     const RopeConfig& top, double* rotated_part) {
  const Json* value = config.Find(key);
  if (!value->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(config.Name(key), " is not an object"));
  }
  const JsonObject block(*value, absl::StrCat(key, "."));
  for (const absl::string_view kind : {"full_attention", "sliding_attention"}) {
    if (block.Has(kind)) {
      return absl::UnimplementedError(
          absl::StrCat(block.Name(kind), ": rope by layer kind is not supported"));
    }
  }
  RopeConfig rope = top;
  KVMESH_ASSIGN_OR_RETURN(rope.theta, block.PositiveOr("rope_theta", top.theta));
  KVMESH_ASSIGN_OR_RETURN(*rotated_part, block.PositiveOr("partial_rotary_factor", *rotated_part));
  KVMESH_RETURN_IF_ERROR(ReadScaling(block, &rope));
  return rope;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRope(const JsonObject& config, uint32_t head_dim) {
  RopeConfig rope;
  double rotated_part = 1.0;
  KVMESH_ASSIGN_OR_RETURN(rope.theta, config.PositiveOr("rope_theta", kDefaultTheta));
  KVMESH_ASSIGN_OR_RETURN(rotated_part, config.PositiveOr("partial_rotary_factor", rotated_part));
  if (config.Has("rope_parameters") && config.Has("rope_scaling")) {
    if (*config.Find("rope_parameters") != *config.Find("rope_scaling")) {
      return absl::InvalidArgumentError("keys rope_parameters and rope_scaling differ");
    }
  }
  for (const absl::string_view key : {"rope_parameters", "rope_scaling"}) {
    if (!config.Has(key)) continue;
    KVMESH_ASSIGN_OR_RETURN(rope, ReadBlock(config, key, rope, &rotated_part));
    break;
  }
  if (rotated_part > 1.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("key partial_rotary_factor is ", rotated_part, ", above 1"));
  }
  rope.dims = static_cast<uint32_t>(rotated_part * head_dim);
  return rope;
}

}  // namespace kvmesh::model

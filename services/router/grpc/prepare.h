// Requests of clients, checked and turned into what the core works on. Pure but for the tokenizer's
// work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "kvmesh/v1/router.pb.h"
#include "services/router/core/generation.h"
#include "services/router/core/text_assembler.h"
#include "services/router/grpc/router_model.h"

namespace kvmesh::router {

struct PreparedRequest {
  GenerationSpec spec;
  TextOptions text;
  bool return_token_ids = false;
};

// InvalidArgument: neither text nor ids, too long, not UTF-8, an id outside the vocabulary.
absl::StatusOr<std::vector<uint32_t>> PromptIds(const RouterModel& model,
                                                const v1::GenerateRequest& request);

struct RenderedChat {
  std::string text;
  std::vector<uint32_t> ids;
};
// InvalidArgument: malformed JSON, or the template's own message. FailedPrecondition: the model has
// no template.
absl::StatusOr<RenderedChat> RenderChat(const RouterModel& model, const v1::ChatInput& input,
                                        absl::Time now);

// The rest of the request: everything but prompt, deadline and ids, which the caller fills in.
// InvalidArgument: names the field, its value and the limit; a prompt that leaves no room in
// `context_length` with both numbers.
absl::StatusOr<PreparedRequest> Prepare(const RouterModel& model, uint32_t context_length,
                                        std::vector<uint32_t> prompt,
                                        const v1::GenerationOptions& options, uint64_t random_seed);

}  // namespace kvmesh::router

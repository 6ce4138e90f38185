// One generation as a client sees it: the request, the stream, the outcome.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvmesh/v1/router.grpc.pb.h"
#include "tools/kvmesh/interrupt.h"
#include "tools/kvmesh/outcome.h"

namespace kvmesh::cli {

struct GenerationResult {
  std::string text;
  std::vector<uint32_t> token_ids;
  v1::Finished finished;
};

// Text as it comes.
using TextSink = std::function<void(absl::string_view)>;

// Runs until the answer is complete. The statuses of the RPCs (protos/kvmesh/v1/router.proto);
// DeadlineExceeded after `timeout`; Cancelled after an interrupt. `result` holds what came before
// an error.
absl::Status RunGenerate(v1::RouterService::Stub& router, const v1::GenerateRequest& request,
                         absl::Duration timeout, Interrupt& interrupt, const TextSink& sink,
                         GenerationResult* result);
absl::Status RunChat(v1::RouterService::Stub& router, const v1::ChatRequest& request,
                     absl::Duration timeout, Interrupt& interrupt, const TextSink& sink,
                     GenerationResult* result);

// "eos", "length" or "stop".
std::string FinishName(v1::FinishReason reason);

// The object that `generate --json` prints (DESIGN §15).
Json ToJson(const GenerationResult& result);

// One line for people: tokens, what was restored or why nothing, time to first token, tokens per
// second.
std::string Summary(const GenerationResult& result);

}  // namespace kvmesh::cli

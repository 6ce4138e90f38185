#include "tests/process/conversations/conversation.h"

#include <gtest/gtest.h>

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/slab/cut_points.h"
#include "tools/kvmesh/metrics_page.h"

namespace kvmesh::process_testing {
namespace {

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
}

std::vector<std::string> UpFlags(const std::vector<std::string>& gates,
                                 const std::vector<std::string>& router_gates,
                                 const std::string& tiers) {
  std::vector<std::string> flags = {"--tiers",
                                    tiers,
                                    "--threads",
                                    "1",
                                    "--router-flag=--resolve-ms=100",
                                    "--router-flag=--heartbeat-ms=500",
                                    "--router-flag=--reserve-timeout-ms=30000"};
  for (const std::string& gate : gates) {
    flags.push_back(absl::StrCat("--router-flag=", gate));
    flags.push_back(absl::StrCat("--shard-flag=", gate));
  }
  for (const std::string& gate : router_gates) {
    flags.push_back(absl::StrCat("--router-flag=", gate));
  }
  return flags;
}

}  // namespace

StoringMesh::StoringMesh(const std::string& model, const std::vector<std::string>& gates,
                         const std::vector<std::string>& router_gates, const std::string& tiers)
    : mesh_(model, UpFlags(gates, router_gates, tiers)) {
  meta_ = v1::MetaService::NewStub(rpc::MakeChannel(mesh_.Service("meta").address));
}

void StoringMesh::AwaitSaved() {
  EXPECT_TRUE(WaitUntil([this] {
    if (!IsIdle(mesh_.Status())) return false;
    grpc::ClientContext context;
    SetDeadline(context);
    v1::ListReservationsResponse response;
    return meta_->ListReservations(&context, {}, &response).ok() && response.reservations().empty();
  })) << "a save does not end";
}

std::vector<v1::RowSummary> StoringMesh::Rows() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListRowsResponse rows;
  const grpc::Status status = meta_->ListRows(&context, {}, &rows);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {rows.rows().begin(), rows.rows().end()};
}

std::vector<uint32_t> StoringMesh::Tokenize(const std::string& text) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = router().Tokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.ids().begin(), response.ids().end()};
}

double StoringMesh::Metric(const std::string& service, const std::string& series) const {
  return cli::MetricOn(Metrics(mesh_.Service(service).metrics), series);
}

std::string StoringMesh::WhatIsLeft() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::MetaServiceGetStatsResponse stats;
  if (!meta_->GetStats(&context, {}, &stats).ok()) return "the arbiter does not answer";
  if (stats.reservations() + stats.leases() + stats.waiters() > 0) return stats.ShortDebugString();
  return WhatRuns(mesh_.Status());
}

void StoringMesh::ExpectNothingLeft() {
  process_testing::ExpectNothingLeft([this] { return WhatIsLeft(); });
}

std::string PromptText(const std::string& topic, size_t bytes) {
  return FilledText(absl::StrCat("About ", topic, ":"), topic.size(), bytes);
}

v1::GenerateRequest Conversation::Say(const std::string& user, uint32_t tokens) {
  Add("user", user);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::RenderChatResponse response;
  const grpc::Status status = mesh_.router().RenderChat(&context, rendered_, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  v1::GenerateRequest request;
  *request.mutable_token_ids()->mutable_ids() = response.ids();
  request.mutable_options()->set_max_tokens(tokens);
  request.mutable_options()->set_return_token_ids(true);
  request.mutable_options()->set_parent_key(parent_key_);
  return request;
}

void Conversation::Hear(const Answer& answer) {
  Add("assistant", answer.text);
  parent_key_ = answer.finished.finish_key();
}

void Conversation::Add(const std::string& role, const std::string& content) {
  v1::ChatMessage& message = *rendered_.mutable_input()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

std::string BytesOf(StoringMesh& mesh, absl::Span<const uint32_t> ids) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DetokenizeRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  v1::DetokenizeResponse response;
  const grpc::Status status = mesh.router().Detokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.text_bytes();
}

uint64_t FinishTokens(StoringMesh& mesh, const Answer& answer) {
  const auto& prompt = answer.finished.effective_prompt_ids();
  std::vector<uint32_t> ids(prompt.begin(), prompt.end());
  // The last token was never run.
  ids.insert(ids.end(), answer.ids.begin(), answer.ids.end() - 1);
  while (!ids.empty() && slab::EndsInsideCharacter(BytesOf(mesh, ids))) ids.pop_back();
  return ids.size();
}

double RowsRun(const StoringMesh& mesh) {
  return mesh.Metric("shard-0", "kvmesh_shard_tokens_total");
}

std::vector<uint32_t> PromptIds(StoringMesh& mesh, const std::string& topic, size_t count) {
  // A token has fewer than eight bytes of these words, and one at least.
  std::vector<uint32_t> ids = mesh.Tokenize(PromptText(topic, 8 * count + 16));
  EXPECT_GE(ids.size(), count);
  ids.resize(count);
  return ids;
}

}  // namespace kvmesh::process_testing

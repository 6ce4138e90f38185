// Conversations with a mesh that keeps checkpoints, and what their answers are held against: the
// same generation without any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "tests/process/answers.h"

namespace kvmesh::process_testing {

// A mesh of two shards with an arbiter and a tier.
class StoringMesh {
 public:
  // `gates`: further flags of router and shards, by which all agree on what is stored;
  // `router_gates` those of the router alone. `tiers` as of `kvmesh up`.
  explicit StoringMesh(const std::string& model, const std::vector<std::string>& gates = {},
                       const std::vector<std::string>& router_gates = {},
                       const std::string& tiers = "disk");

  v1::RouterService::Stub& router() { return mesh_.router(); }
  const std::string& router_address() const { return mesh_.router_address(); }
  Answer Ask(const v1::GenerateRequest& request) { return Generate(mesh_.router(), request); }
  // Until every save of the answers so far has become rows or nothing.
  void AwaitSaved();
  std::vector<v1::RowSummary> Rows();
  // The model's own ids of a text.
  std::vector<uint32_t> Tokenize(const std::string& text);
  double Metric(const std::string& service, const std::string& series) const;
  // Until nothing is left of what was under way: reservations, leases, live sessions, generations.
  void ExpectNothingLeft();

 private:
  std::string WhatIsLeft();

  Mesh mesh_;
  std::unique_ptr<v1::MetaService::Stub> meta_;
};

// ASCII words, `bytes` of them, other ones for every `topic`.
std::string PromptText(const std::string& topic, size_t bytes);

// As a client that keeps a whole conversation: each request has all of it, through the model's own
// template.
class Conversation {
 public:
  // `mesh` must outlive it.
  Conversation(StoringMesh& mesh, const std::string& system) : mesh_(mesh) {
    Add("system", system);
  }
  // A request for the answer to `user`, of at most `tokens` tokens, that returns its ids.
  v1::GenerateRequest Say(const std::string& user, uint32_t tokens);
  void Hear(const Answer& answer);

 private:
  void Add(const std::string& role, const std::string& content);

  StoringMesh& mesh_;
  v1::RenderChatRequest rendered_;
  std::string parent_key_;
};

// Raw bytes of ids.
std::string BytesOf(StoringMesh& mesh, absl::Span<const uint32_t> ids);

// How many tokens the save at the end of `answer` holds: all that were run, back to a character's
// end.
uint64_t FinishTokens(StoringMesh& mesh, const Answer& answer);

// Rows that the engine has run so far, of the first shard's layers.
double RowsRun(const StoringMesh& mesh);

// The first `count` ids of a text about `topic`.
std::vector<uint32_t> PromptIds(StoringMesh& mesh, const std::string& topic, size_t count);

}  // namespace kvmesh::process_testing

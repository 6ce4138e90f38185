#include "tests/rpc/router/fake_shard.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/sha256.h"

namespace kvmesh::router {
namespace {

void SetDigest(const Sha256Digest& digest, std::string* field) {
  field->assign(digest.bytes().data(), digest.bytes().size());
}

}  // namespace

uint32_t FakeNext(const std::vector<uint32_t>& sequence) {
  uint64_t hash = 7;
  for (const uint32_t id : sequence) hash = hash * 31 + id + 1;
  return static_cast<uint32_t>(hash % (kFakeVocab - 1));
}

ModelIdentity FakeIdentity() {
  return {.layer_count = kFakeLayers,
          .config_digest = Sha256Of("config"),
          .tokenizer_digest = Sha256Of("tokenizer")};
}

FakeShard::FakeShard(Options options) : options_(options) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", options.port),
                           grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = absl::StrCat("127.0.0.1:", port_);
}

FakeShard::~FakeShard() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeShard::OnCompute(std::function<grpc::Status(const v1::Compute&)> hook) {
  MutexLock lock(&mutex_);
  hook_ = std::move(hook);
}

std::vector<v1::Open> FakeShard::opens() const {
  MutexLock lock(&mutex_);
  return opens_;
}

int FakeShard::closes(v1::Close::Disposition disposition) const {
  MutexLock lock(&mutex_);
  return static_cast<int>(std::count(closes_.begin(), closes_.end(), disposition));
}

int FakeShard::dropped_sessions() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

int FakeShard::open_streams() const {
  MutexLock lock(&mutex_);
  return streams_;
}

v1::WatchResponse FakeShard::Facts() const {
  v1::WatchResponse facts;
  facts.set_instance_id(instance_.bytes().data(), InstanceId::kSize);
  facts.mutable_layers()->set_begin(options_.layers.begin);
  facts.mutable_layers()->set_end(options_.layers.end);
  facts.set_layer_count(kFakeLayers);
  for (uint32_t layer = options_.layers.begin; layer < options_.layers.end; ++layer) {
    SetDigest(Sha256Of(absl::StrCat("layer ", layer)), facts.add_layer_digests());
  }
  SetDigest(Sha256Of("embedding"), facts.mutable_embedding_digest());
  SetDigest(Sha256Of("head"), facts.mutable_head_digest());
  SetDigest(FakeIdentity().config_digest, facts.mutable_config_digest());
  SetDigest(FakeIdentity().tokenizer_digest, facts.mutable_tokenizer_digest());
  facts.set_protocol_version(limits::kProtocolVersion);
  facts.set_quant(options_.quant);
  facts.set_numerics_id("fake");
  facts.set_supports_kv_cache(options_.supports_kv_cache);
  facts.mutable_capacity()->set_sessions_max(8);
  facts.set_context_length(2048);
  facts.set_hidden_size(8);
  facts.set_vocab_size(kFakeVocab);
  return facts;
}

grpc::Status FakeShard::Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                              grpc::ServerWriter<v1::WatchResponse>* writer) {
  const absl::Duration heartbeat = absl::Milliseconds(request->heartbeat().value());
  while (!context->IsCancelled() && writer->Write(Facts())) {
    MutexLock lock(&mutex_);
    if (!stopping_) wake_.WaitFor(&mutex_, heartbeat);
    if (stopping_) break;
  }
  return grpc::Status::OK;
}

grpc::Status FakeShard::Forward(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream) {
  {
    MutexLock lock(&mutex_);
    ++streams_;
  }
  const grpc::Status status = Serve(stream);
  MutexLock lock(&mutex_);
  --streams_;
  return status;
}

grpc::Status FakeShard::Serve(
    grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>* stream) {
  v1::ForwardRequest request;
  std::vector<uint32_t> sequence;
  while (stream->Read(&request)) {
    if (request.has_open()) {
      sequence.assign(request.open().history().begin(), request.open().history().end());
      MutexLock lock(&mutex_);
      opens_.push_back(request.open());
      continue;
    }
    if (request.has_close()) {
      MutexLock lock(&mutex_);
      closes_.push_back(request.close().disposition());
      return grpc::Status::OK;
    }
    const v1::Compute& compute = request.compute();
    std::function<grpc::Status(const v1::Compute&)> hook;
    {
      MutexLock lock(&mutex_);
      hook = hook_;
    }
    if (hook) {
      if (grpc::Status status = hook(compute); !status.ok()) return status;
    }
    sequence.resize(std::min<size_t>(sequence.size(), compute.past_len()));
    sequence.insert(sequence.end(), compute.tokens().begin(), compute.tokens().end());
    v1::ForwardResponse answer;
    if (compute.cache_mode() == v1::CACHE_MODE_PREFILL) {
      answer.mutable_ack()->set_step(compute.step());
      answer.mutable_ack()->set_past_len(compute.past_len());
      stream->Write(answer);
    }
    if (!compute.want_logits()) continue;
    const uint32_t next = FakeNext(sequence);
    v1::Output* output = answer.mutable_output();
    output->set_step(compute.step());
    if (options_.token_ids) output->set_token_id(next);
    output->set_piece(std::string(1, static_cast<char>('a' + next)));
    stream->Write(answer);
  }
  return grpc::Status::OK;
}

grpc::Status FakeShard::GetSession(grpc::ServerContext*, const v1::GetSessionRequest*,
                                   v1::GetSessionResponse*) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND, "not held here");
}

grpc::Status FakeShard::DropSession(grpc::ServerContext*, const v1::DropSessionRequest*,
                                    v1::DropSessionResponse*) {
  MutexLock lock(&mutex_);
  ++dropped_;
  return grpc::Status::OK;
}

}  // namespace kvmesh::router

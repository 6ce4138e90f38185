#include "services/router/grpc/checkpoint_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/forward/key_namespace.h"
#include "common/rpc/channel.h"
#include "common/rpc/span.h"
#include "common/rpc/status_bridge.h"
#include "common/slab/format.h"
#include "services/router/grpc/meta_codec.h"

namespace kvmesh::router {
namespace {

// Stores come and go; more than a fleet has would mean that somebody makes them up.
constexpr size_t kStoresMax = 256;
constexpr uint64_t kMetaAnswerBytesMax = slab::kMetaBytesMax + (1 << 20);

// Of a GET_PART_META answer: head, meta section and trailer, one behind another. DataLoss: not
// those of a sound slab.
absl::StatusOr<slab::SlabMeta> ParseMetaAnswer(uint64_t file_bytes, absl::string_view bytes) {
  if (bytes.size() < slab::kHeadBytes + slab::kTrailerBytes) {
    return absl::DataLossError(absl::StrCat("an answer of ", bytes.size(), " bytes"));
  }
  KVMESH_ASSIGN_OR_RETURN(const slab::Head head,
                          slab::ParseHead(bytes.substr(0, slab::kHeadBytes), file_bytes));
  const uint64_t meta_end = slab::kHeadBytes + uint64_t{head.meta_bytes};
  if (bytes.size() != meta_end + slab::kTrailerBytes) {
    return absl::DataLossError(absl::StrCat("a head, a meta section of ", head.meta_bytes,
                                            " bytes and a trailer in ", bytes.size(), " bytes"));
  }
  KVMESH_ASSIGN_OR_RETURN(slab::SlabMeta meta,
                          slab::ParseMeta(head, bytes.substr(slab::kHeadBytes, head.meta_bytes)));
  KVMESH_RETURN_IF_ERROR(slab::CheckTrailer(bytes, bytes.substr(meta_end), meta));
  return meta;
}

// DataLoss: a slab of another name than it was asked for under.
absl::Status CheckIdentity(const slab::SlabMeta& meta, const ReadCheckpoint& effect) {
  const forward::SlabRef& wanted = effect.slab;
  if (meta.key == wanted.key && meta.header.layers == wanted.layers &&
      meta.write_id == wanted.write_id && meta.tokens_sha256 == wanted.tokens_sha256 &&
      meta.key_namespace == forward::KeyNamespaceOf(effect.cache_namespace) &&
      effect.cut_tokens <= meta.token_ids.size()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("the slab at ", wanted.store_address, " is not ", SlabName(wanted)));
}

// One Get; deletes itself when it is over.
class MetaGet final : public grpc::ClientReadReactor<v1::GetResponse> {
 public:
  using Done = std::function<void(absl::Status, v1::GetHeader, std::string)>;

  MetaGet(std::shared_ptr<v1::BlobService::Stub> stub, const ReadCheckpoint& effect,
          const Trace& trace, Done done)
      : stub_(std::move(stub)), done_(std::move(done)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + effect.timeout));
    rpc::AddTrace(context_, trace);
    *request_.mutable_slab() = EncodeSlabId(effect.slab);
    request_.set_part(v1::GET_PART_META);
  }
  void Start() {
    stub_->async()->Get(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_header()) {
      header_ = response_.header();
    } else {
      bytes_ += response_.chunk();
    }
    if (bytes_.size() > kMetaAnswerBytesMax) {
      context_.TryCancel();
    } else {
      StartRead(&response_);
    }
  }
  void OnDone(const grpc::Status& status) override {
    done_(rpc::FromGrpc(status), std::move(header_), std::move(bytes_));
    delete this;
  }

 private:
  const std::shared_ptr<v1::BlobService::Stub> stub_;  // shared: the reader may forget it first
  const Done done_;
  grpc::ClientContext context_;
  v1::GetRequest request_;
  v1::GetResponse response_;
  v1::GetHeader header_;
  std::string bytes_;
};

}  // namespace

absl::StatusOr<CheckpointRead> ReadMetaSection(const ReadCheckpoint& effect,
                                               const v1::GetHeader& header, absl::string_view bytes,
                                               const text::Tokenizer& tokenizer) {
  KVMESH_ASSIGN_OR_RETURN(const slab::SlabMeta meta, ParseMetaAnswer(header.size_bytes(), bytes));
  KVMESH_RETURN_IF_ERROR(CheckIdentity(meta, effect));
  const auto stored = absl::MakeConstSpan(meta.token_ids).first(effect.cut_tokens);
  CheckpointRead read{.has_output_row = meta.last_output.has_value()};
  KVMESH_ASSIGN_OR_RETURN(read.seam,
                          JoinSeam(tokenizer, *effect.prompt, stored, effect.cut_text_bytes));
  return read;
}

std::shared_ptr<v1::BlobService::Stub> CheckpointReader::StubFor(const std::string& address) {
  MutexLock lock(&mutex_);
  const auto found = stubs_.find(address);
  if (found != stubs_.end()) return found->second;
  if (stubs_.size() >= kStoresMax) stubs_.clear();
  std::shared_ptr<v1::BlobService::Stub> stub =
      v1::BlobService::NewStub(rpc::MakeChannel(address, tls_, rpc::Role::kBlob));
  stubs_[address] = stub;
  return stub;
}

void CheckpointReader::Read(ReadCheckpoint effect, const Trace& trace, Answer done) {
  std::shared_ptr<v1::BlobService::Stub> stub = StubFor(effect.slab.store_address);
  auto* get = new MetaGet(
      std::move(stub), effect, trace,
      [this, effect, done = std::move(done)](const absl::Status& status, v1::GetHeader header,
                                             std::string bytes) {
        if (!status.ok()) return done(status);
        const size_t work_bytes = bytes.size() + effect.prompt->text.text().size();
        const bool accepted = pool_.Submit(
            work_bytes, [this, effect, done, header = std::move(header), bytes = std::move(bytes)] {
              done(ReadMetaSection(effect, header, bytes, tokenizer_));
            });
        if (!accepted) done(absl::ResourceExhaustedError("too much work is waiting"));
      });
  get->Start();
}

}  // namespace kvmesh::router

// Reads what a router needs of a stored slab: its meta section, checked, and joined to a prompt.
//
// Thread-safe. The bytes come on gRPC's threads; checking and tokenising happen in the work pool.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/trace.h"
#include "common/rpc/channel.h"
#include "common/text/tokenizer.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "services/router/core/effects.h"
#include "services/router/grpc/work_pool.h"

namespace kvmesh::router {

class CheckpointReader {
 public:
  using Answer = std::function<void(absl::StatusOr<CheckpointRead>)>;

  // `tls`: null for plaintext. The other two must outlive it and every reading.
  CheckpointReader(std::shared_ptr<rpc::TlsIdentity> tls, const text::Tokenizer& tokenizer,
                   WorkPool& pool)
      : tls_(std::move(tls)), tokenizer_(tokenizer), pool_(pool) {}

  // `done` comes once. Errors as of the effect; ResourceExhausted: too much waits in the pool.
  void Read(ReadCheckpoint effect, const Trace& trace, Answer done);

 private:
  std::shared_ptr<v1::BlobService::Stub> StubFor(const std::string& address);

  const std::shared_ptr<rpc::TlsIdentity> tls_;
  const text::Tokenizer& tokenizer_;
  WorkPool& pool_;
  Mutex mutex_;
  // Shared with the readings under way.
  std::map<std::string, std::shared_ptr<v1::BlobService::Stub>> stubs_ ABSL_GUARDED_BY(mutex_);
};

// What Read does with the header and the bytes of a GET_PART_META answer. Pure.
absl::StatusOr<CheckpointRead> ReadMetaSection(const ReadCheckpoint& effect,
                                               const v1::GetHeader& header, absl::string_view bytes,
                                               const text::Tokenizer& tokenizer);

}  // namespace kvmesh::router

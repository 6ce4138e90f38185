// What a shard asks of the arbiter: room for a slab that it saves on its own account. Blocking, for
// threads of one's own; every call has a deadline. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/forward/frames.h"
#include "common/rpc/call_group.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/meta.grpc.pb.h"

namespace kvmesh::shard {

struct FragmentRequest {
  forward::CacheNamespace cache_namespace;
  Sha256Digest key;
  LayerRange layers;
  uint32_t model_layers = 0;
  uint64_t file_bytes = 0;
  forward::SaveReason reason = forward::SaveReason::kEvict;
};

struct Reservation {
  WriteId write_id;
  std::string store_address;
};

class MetaClient {
 public:
  // `tls`: null for plaintext. `reserving`, which outlives it, has the calls of ReserveFragment.
  MetaClient(const std::string& address, const std::shared_ptr<rpc::TlsIdentity>& tls,
             rpc::CallGroup& reserving);

  // The arbiter's errors (Meta.Reserve); DeadlineExceeded after `timeout`; Cancelled with the
  // group; Internal: its answer has no write_id, or another number of ranges than the one asked
  // for.
  absl::StatusOr<Reservation> ReserveFragment(const FragmentRequest& request,
                                              absl::Duration timeout);
  // Best effort: a reservation that is not cancelled lapses.
  void Cancel(const WriteId& write_id, absl::Duration timeout);

 private:
  rpc::CallGroup& reserving_;
  const std::unique_ptr<v1::MetaService::StubInterface> stub_;
};

}  // namespace kvmesh::shard

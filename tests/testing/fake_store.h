// A store as the arbiter sees one: attaches, says what it holds, obeys. Slabs are announcements and
// texts without bytes.
//
// Thread-safe. Every wait is bounded by a minute.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/layer_range.h"
#include "common/base/mutex.h"
#include "common/slab/content_key.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "tests/testing/wait_until.h"

namespace kvmesh::testing {

std::chrono::system_clock::time_point MinuteFromNow();

// A slab of one text; tokens of four bytes.
struct FakeSlab {
  slab::KeyNamespace key_namespace;
  std::string text;
  std::vector<uint32_t> cuts;  // in bytes
  LayerRange layers = {0, 30};
  WriteId write_id;
  uint32_t model_layers = 30;
  uint64_t size_bytes = 1 << 20;
};
v1::SlabAnnouncement AnnouncementOf(const FakeSlab& slab);

struct FakeStoreOptions {
  std::string id = RandomId<InstanceId>().ToHex();
  std::string address = "127.0.0.1:7001";
  std::string tier = "ram";
  uint64_t budget_bytes = 1 << 30;
  uint32_t protocol = 1;
  size_t page_size = 1000;
  bool answers_pings = true;
  bool answers_deletes = true;
  bool answers_texts = true;
};

class FakeStore {
 public:
  explicit FakeStore(FakeStoreOptions options) : options_(std::move(options)) {}
  ~FakeStore() { Detach(); }

  // Adds a slab; announces it when the store is attached.
  void Put(const FakeSlab& slab);
  // Without telling anybody.
  void Forget(const v1::SlabId& slab);
  size_t slabs() const;
  // Names of slabs that the arbiter had deleted or verified, in order.
  std::vector<std::string> deleted() const;
  std::vector<std::string> verified() const;

  // Opens the stream and says hello and the inventory. The status with which the arbiter refused
  // the hello, or OK. A store that is attached is detached first.
  absl::Status Attach(const std::shared_ptr<grpc::Channel>& channel);
  void Detach();
  // How the arbiter ended the stream; nothing while it goes on.
  std::optional<absl::Status> ended() const;
  void Send(const v1::AttachStoreRequest& frame);
  v1::Incarnation incarnation() const;  // of the last welcome

 private:
  using Stream = grpc::ClientReaderWriter<v1::AttachStoreRequest, v1::AttachStoreResponse>;
  struct Held {
    v1::SlabAnnouncement announcement;
    std::string text;
  };

  void Read();
  void Obey(const v1::AttachStoreResponse& frame);
  void SendInventory();

  const FakeStoreOptions options_;
  const std::string boot_id_ = std::string(RandomId<InstanceId>().bytes());
  mutable Mutex mutex_;
  std::map<std::string, Held> slabs_ ABSL_GUARDED_BY(mutex_);  // by name
  std::vector<std::string> deleted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> verified_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Incarnation> welcome_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Incarnation> seen_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);
  Mutex write_mutex_;  // gRPC takes one write at a time
  std::unique_ptr<v1::MetaService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::thread reader_;
};

}  // namespace kvmesh::testing

// The store's stream to the arbiter (AttachStore in protos/kvmesh/v1/meta.proto): hello, inventory,
// then what happens here; obeys what comes back. A stream that ends is followed by another, with a
// delay that grows; without an arbiter the store serves all the same.
//
// One thread speaks: it reads, decides and writes, one frame at a time. What blocks — deletes,
// verification, reading texts — runs on executors, which report through the news.
// Thread-safe. Order: events may come from the start; Start, Stop.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "kvmesh/v1/meta.grpc.pb.h"
#include "services/blob/core/back_off.h"
#include "services/blob/core/store_news.h"
#include "services/blob/grpc/attach_codec.h"
#include "services/blob/grpc/blob_service.h"

namespace kvmesh::blob {

struct MetaLinkOptions {
  std::string arbiter;                    // its address, host:port; empty: the store has none
  std::shared_ptr<rpc::TlsIdentity> tls;  // null: plaintext
  StoreFacts facts;  // without the address, which is known once the store listens
  absl::Duration heartbeat = absl::Seconds(5);
  // A hello that is not answered, or a frame that is not taken, for so long ends the stream.
  absl::Duration silence_max = absl::Seconds(15);
  absl::Duration delay_first = absl::Milliseconds(100);
  absl::Duration delay_longest = absl::Seconds(5);
  size_t news_max = 65536;
};

class MetaLink final : public StoreEvents {
 public:
  // `context` must outlive the link, but for what its executors still run: after Stop, the
  // context's end comes first, then the link's.
  MetaLink(MetaLinkOptions options, ServiceContext& context, StoreIdentity identity);
  ~MetaLink() override;

  // `address`: of this store's BlobService, as clients dial it.
  void Start(const std::string& address);
  // Ends the stream and the thread. Idempotent.
  void Stop();

  void OnPut(const PutResult& put) override;
  void OnRemoved(const SlabName& name) override;
  void OnQuarantined(const SlabName& name, const absl::Status& why) override;

 private:
  class Stream;
  // What one stream has come to.
  struct Talk {
    bool welcomed = false;
    bool pong_due = false;
    bool inventory_done = false;
    std::optional<SlabName> listed;  // the inventory up to here has been said
    MonoTime heartbeat_at;
    MonoTime waiting_since;  // for the welcome, or for the frame that is being written
  };
  // What the thread woke up for.
  struct Turn {
    bool stopping = false;
    bool ended = false;  // the arbiter sends no more
    bool came = false;
    bool can_write = false;
    bool overflowed = false;
  };

  void Run();
  // One stream, from hello to end. How it ended.
  absl::Status Attach();
  // Until the arbiter ends the stream (Ok) or there is a reason to give it up.
  absl::Status Converse(Stream& stream, Talk& talk);
  Turn WaitForTurn(const Talk& talk);
  bool HasSomethingToSay(const Talk& talk) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Obey(const ArbiterCommand& command, Talk& talk);
  absl::Status Do(const Welcome& welcome, Talk& talk);
  absl::Status Do(const DeleteCommand& command, Talk& talk);
  absl::Status Do(const VerifyCommand& command, Talk& talk);
  absl::Status Do(const DescribeCommand& command, Talk& talk);
  absl::Status Do(const RecordUseCommand& command, Talk& talk);
  absl::Status Do(const PingCommand& command, Talk& talk);
  absl::Status Do(const TextCommand& command, Talk& talk);
  std::optional<v1::AttachStoreRequest> NextFrame(Talk& talk);
  v1::InventoryPage NextPage(Talk& talk);
  std::optional<v1::AttachStoreRequest> NextNews();
  void Say(News news);
  // The stream is given up: something that the arbiter waits for cannot be done now.
  void GiveUp(const absl::Status& why);
  static absl::Status TooMuch(absl::string_view what);
  void WaitBeforeNext(const absl::Status& ended);
  void Log(const absl::Status& ended);

  const MetaLinkOptions options_;
  StoreFacts facts_;  // complete once the thread runs
  ServiceContext& context_;
  StoreIdentity identity_;  // of the thread
  BackOff back_off_;        // of the thread
  std::string logged_;      // of the thread: the last reason that was logged
  std::unique_ptr<v1::MetaService::Stub> stub_;
  prometheus::Gauge& attached_;
  Executor chores_;  // rewriting use, reading texts
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool listening_ ABSL_GUARDED_BY(mutex_) = false;  // news is kept: a stream runs
  NewsQueue news_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> given_up_ ABSL_GUARDED_BY(mutex_);
  // Of the stream that runs.
  bool came_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_runs_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> stream_ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvmesh::blob

// The streams of attached stores. Of the arbiter's thread alone; what it calls never blocks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kvmesh/v1/meta.pb.h"
#include "services/meta/core/commands.h"
#include "services/meta/core/effects.h"

namespace kvmesh::meta {

// One stream, as the arbiter's thread sees it. Thread-safe.
class StoreConnection {
 public:
  virtual ~StoreConnection() = default;
  // False: so much waits to be sent that the store must be given up.
  virtual bool Send(v1::AttachStoreResponse frame) = 0;
  // Frames that wait to be sent.
  virtual size_t waiting() const = 0;
  // Lets the next frame come: the one before was applied.
  virtual void ReadNext() = 0;
  // Ends the stream once what is being sent is sent. Only the first call counts.
  virtual void Close(const absl::Status& status) = 0;
};

class StoreHub {
 public:
  // A stream that has not said hello after this time is closed.
  static constexpr absl::Duration kHelloWait = absl::Seconds(15);
  static constexpr size_t kStreamsMax = 1024;
  static constexpr size_t kTextRequestsMax = 256;

  // Closes the connection at once when there are too many.
  void Add(StreamId stream, std::shared_ptr<StoreConnection> connection, MonoTime now);
  void Remove(StreamId stream);
  // Closes the stream, if it is here, and forgets it.
  void Close(StreamId stream, const absl::Status& status);
  void CloseAll(const absl::Status& status);
  void ReadNext(StreamId stream);
  // Also learns from the arbiter's welcome that the stream is its store's. False: the stream had to
  // be closed, and the arbiter must be told.
  bool Send(const ToStore& message);
  void SaidHello(const StoreHello& hello);

  // Asks a store for the first `bytes_max` bytes of a slab's text. `done` is called once, on this
  // thread: nothing if the store is not attached, does not answer in time, or has no such slab.
  using TextDone = std::function<void(std::optional<std::string> text)>;
  void RequestText(const StoreUid& store, const SlabName& slab, uint64_t bytes_max,
                   MonoTime deadline, TextDone done);
  void TakeText(StreamId stream, const v1::SlabText& text);

  // Closes silent newcomers and gives up on late texts.
  void Tick(MonoTime now);
  size_t streams() const { return streams_.size(); }
  // The most frames that wait for any one store.
  size_t waiting_max() const;

 private:
  struct Stream {
    std::shared_ptr<StoreConnection> connection;  // shared with gRPC, whose reactor it is
    MonoTime added;
    std::optional<StoreUid> said;  // in its hello
    bool welcome = false;
  };
  struct TextRequest {
    StreamId stream{0};
    MonoTime deadline;
    TextDone done;
  };
  void FailTexts(StreamId stream);

  std::map<StreamId, Stream> streams_;
  std::map<StoreUid, StreamId> attached_;
  std::map<uint64_t, TextRequest> texts_;
  uint64_t next_text_ = 1;
};

}  // namespace kvmesh::meta

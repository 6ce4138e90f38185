// A store in virtual time: slabs, open puts and readers, its own budget, and its stream to the
// arbiter. It obeys, and enforces its budget by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/meta/core/arbiter.h"

namespace kvmesh::meta::sim {

class Cluster;

struct SimStoreOptions {
  uint32_t number = 0;
  Tier tier = Tier::kRamFile;
  uint64_t budget_bytes = 0;
};

class SimStore {
 public:
  SimStore(Cluster& cluster, const SimStoreOptions& options);

  // Uploads one slab for `time`; `done(false)`: refused, aborted or crashed.
  void Put(const SlabFacts& facts, absl::Duration time, std::function<void(bool)> done);
  // Whether the slab is here; then it is held for `time`.
  bool Read(const SlabName& name, absl::Duration time);

  void Crash(absl::Duration down_for);
  // The stream breaks; the store attaches again.
  void BreakStream();

  // From the arbiter, in the order of one stream.
  void OnMessage(StreamId stream, const ToStore& message);
  void OnClosed(StreamId stream);

  const StoreUid& uid() const { return uid_; }
  StreamId stream() const { return stream_; }
  // By name, with what it takes.
  std::map<std::string, uint64_t> Contents() const;
  uint64_t refused_puts() const { return refused_puts_; }
  size_t open_puts() const { return puts_.size(); }

 private:
  struct Stored {
    SlabFacts facts;
    int readers = 0;
    bool unlinked = false;  // deleted; its bytes stay until the last reader ends
  };
  struct OpenPut {
    SlabFacts facts;
    bool aborted = false;
  };

  void Attach();
  void AttachLater();
  void Heartbeat(uint64_t life, StreamId stream);
  void Send(Command command);
  void SayInventory();
  void Do(const Welcome& it);
  void Do(const DeleteSlab& it);
  void Do(const VerifySlab& it);
  void Do(const DescribeSlab& it);
  void Do(const RecordUse& it);
  void Do(const Ping& it);
  void FinishDelete(const SlabName& name);
  uint64_t Occupied() const;

  Cluster& cluster_;
  const SimStoreOptions options_;
  const StoreUid uid_;
  uint64_t life_ = 1;  // one process
  bool up_ = true;
  StreamId stream_{0};  // 0: none
  bool said_inventory_ = false;
  std::optional<Incarnation> seen_;
  std::map<std::string, Stored> slabs_;
  std::map<std::string, OpenPut> puts_;
  uint64_t refused_puts_ = 0;
};

}  // namespace kvmesh::meta::sim

// What the parts of the blob bench share.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/blob_client.h"
#include "common/slab/writer.h"
#include "kvmesh/v1/blob.grpc.pb.h"
#include "tests/bench/blob/server_process.h"

namespace kvmesh::bench {

inline constexpr absl::Duration kTimeout = absl::Minutes(10);
inline constexpr uint64_t kMiB = 1 << 20;

// Ends the bench with the error.
void Must(const absl::Status& status);
std::string BinDir();
// Steady, in seconds.
double Now();
double Median(std::vector<double> values);

// A folder of its own on the tier's medium.
class Folder {
 public:
  explicit Folder(const std::string& tier);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Connected when it returns.
std::shared_ptr<grpc::Channel> Connect(const std::string& address);

std::unique_ptr<ServerProcess> StartBlob(const std::string& tier, const Folder& folder,
                                         const std::vector<std::string>& environment = {});

// A slab of one region, in the memory of this process.
class LargeSlab : public std::enable_shared_from_this<LargeSlab> {
 public:
  static std::shared_ptr<const LargeSlab> Make(uint64_t seed, uint64_t bytes);
  const slab::SlabMeta& meta() const { return image_->meta(); }
  uint64_t size() const { return image_->size(); }
  std::vector<absl::string_view> parts() const { return image_->Parts(); }

 private:
  std::string state_;
  std::unique_ptr<slab::SlabImage> image_;
};

v1::PutHeader HeaderOf(const slab::SlabMeta& meta);
void Put(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab);
void Get(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab);
void Delete(const std::shared_ptr<grpc::Channel>& channel, const LargeSlab& slab);

// ---- the parts

// Each round pumps, puts and gets in turn.
void BenchThroughput(const std::string& tier, int rounds, const ServerProcess& pump,
                     const LargeSlab& slab);
// How often each byte is copied in user space, by store and by client.
void BenchCopies(const std::string& tier, uint64_t slab_bytes);
// The client's side of it, in a process of its own: puts and gets a slab and writes what it copied
// to `ready_file`.
void CountClientCopies(const std::string& address, uint64_t slab_bytes,
                       const std::string& ready_file);
// Puts a second of slabs of 64 KiB.
void BenchSmall(const std::string& tier, int count);
// Seconds from the start of a store of so many slabs to its readiness.
void BenchScan(int count);

}  // namespace kvmesh::bench

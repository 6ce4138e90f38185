// What a store remembers of itself and of the arbiter beside its slabs: its id, for good, and the
// highest incarnation that it has obeyed. Without a folder (tier ram) only this process knows.
//
//   store_id      32 hex digits
//   incarnation   number, space, 32 hex digits
//
// Each is replaced whole. Not thread-safe: MetaLink's thread owns it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/blob/core/incarnation.h"
#include "services/blob/tiers/file_system.h"

namespace kvmesh::blob {

using StoreId = ByteId<struct StoreIdTag, 16>;

class StoreIdentity {
 public:
  // `fresh`: the id of a store that has none yet. `folder`, when there is one, exists and is this
  // process's; `files` must outlive the identity. A file that does not say what it should is
  // replaced, and named in complaints(). Else the file system's errors.
  static absl::StatusOr<StoreIdentity> Open(FileSystem& files, const std::string& folder,
                                            const StoreId& fresh);

  const StoreId& id() const { return id_; }
  const std::optional<Incarnation>& seen() const { return seen_; }
  const std::vector<std::string>& complaints() const { return complaints_; }

  // The arbiter may be obeyed from now on: CheckIncarnation, and kept on the medium. Its errors;
  // the file system's.
  absl::Status Obey(const Incarnation& incarnation);

 private:
  StoreIdentity(FileSystem& files, std::string folder)
      : files_(&files), folder_(std::move(folder)) {}
  absl::Status Load(const StoreId& fresh);
  absl::Status Replace(const std::string& name, const std::string& content);

  FileSystem* files_;
  std::string folder_;  // empty: nothing is kept
  StoreId id_;
  std::optional<Incarnation> seen_;
  std::vector<std::string> complaints_;
};

}  // namespace kvmesh::blob

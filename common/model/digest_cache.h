// Digests of a model's parts, kept in a small file so that a second start need not read all
// weights. A cache and no more: what cannot be read, is torn, or was made from other files is as if
// it were not there, and what cannot be written is not written. Safe between processes: a file is
// replaced as a whole.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/model/mapped_file.h"

namespace kvmesh::model {

class DigestCache {
 public:
  // Lies beside the model (DIR/.kvmesh-digests.json, or DIR/.NAME.kvmesh-digests.json for a file
  // NAME); where that cannot be written, in ${XDG_CACHE_HOME:-~/.cache}/kvmesh. Valid for exactly
  // the `files` given.
  DigestCache(const std::string& model_path, std::vector<FileIdentity> files);

  // Part name to digest; empty when there is no valid cache.
  std::map<std::string, Sha256Digest> Read() const;
  // Does nothing while a file is so young that another change might leave its time of change as it
  // is.
  void Write(const std::map<std::string, Sha256Digest>& parts) const;

 private:
  std::vector<std::string> places_;  // by preference
  std::vector<FileIdentity> files_;
};

}  // namespace kvmesh::model

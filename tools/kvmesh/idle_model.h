// A model of next to no weights, so that a shard that serves it takes what any shard takes beside
// its weights: programs and libraries, threads, buffers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace kvmesh::cli {

// Writes it into the empty folder `folder`, as a Hugging Face directory: one Llama layer of 256
// columns, zeros throughout, with a vocabulary of the 256 bytes. Unavailable: a file cannot be
// written.
absl::Status WriteIdleModel(const std::string& folder);

}  // namespace kvmesh::cli

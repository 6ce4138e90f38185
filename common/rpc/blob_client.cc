#include "common/rpc/blob_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/chunk_codec.h"
#include "common/rpc/raw_call.h"

namespace kvmesh::rpc {
namespace {

constexpr char kPut[] = "/kvmesh.v1.BlobService/Put";
constexpr char kGet[] = "/kvmesh.v1.BlobService/Get";

// False: the call has ended; its status says why.
bool WriteParts(RawCall& call, const SlabBytes& slab) {
  std::vector<absl::string_view> chunk;
  size_t left = kBlobChunkBytes;
  for (absl::string_view part : slab.parts) {
    while (!part.empty()) {
      chunk.push_back(part.substr(0, left));
      part.remove_prefix(chunk.back().size());
      left -= chunk.back().size();
      if (left > 0) continue;
      if (!call.Write(MakeChunkMessage(chunk, slab.owner))) return false;
      chunk.clear();
      left = kBlobChunkBytes;
    }
  }
  return chunk.empty() || call.Write(MakeChunkMessage(chunk, slab.owner));
}

uint64_t BytesOf(const v1::GetHeader& header) {
  uint64_t bytes = 0;
  for (const v1::ByteRange& range : header.ranges()) bytes += range.length();
  return bytes;
}

// `*ended`: the store has ended the call.
absl::Status ReadAnswer(
    RawCall& call, v1::GetHeader* header, bool* ended,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_bytes) {
  grpc::ByteBuffer message;
  v1::GetResponse first;
  *ended = !call.Read(&message);
  if (*ended || !ParseMessage(&message, &first) || !first.has_header()) {
    return absl::DataLossError("the answer has no header");
  }
  header->Swap(first.mutable_header());
  uint64_t left = BytesOf(*header);
  std::vector<grpc::Slice> slices;
  std::vector<absl::string_view> chunk;
  while (call.Read(&message)) {
    v1::GetResponse parsed;
    if (!ViewChunk(message, &slices, &chunk)) {
      if (!ParseMessage(&message, &parsed) || parsed.has_header()) {
        return absl::DataLossError("a message of the answer is no chunk");
      }
      chunk = {absl::string_view(parsed.chunk())};
    }
    for (const absl::string_view bytes : chunk) {
      if (bytes.size() > left) {
        return absl::DataLossError("the answer has more bytes than its header says");
      }
      left -= bytes.size();
      KVMESH_RETURN_IF_ERROR(on_bytes(*header, bytes));
    }
  }
  *ended = true;
  if (left == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the answer lacks ", left, " bytes"));
}

}  // namespace

SlabBytes SlabBytes::Of(std::string slab) {
  const auto owner = std::make_shared<const std::string>(std::move(slab));
  return {.parts = {absl::string_view(*owner)}, .owner = owner};
}

absl::StatusOr<v1::PutResponse> PutSlab(const std::shared_ptr<grpc::Channel>& channel,
                                        const v1::PutHeader& header, const SlabBytes& slab,
                                        absl::Duration timeout, CallGroup* group,
                                        const Trace& trace) {
  RawCall call(channel, kPut, timeout, group, trace);
  v1::PutRequest first;
  *first.mutable_header() = header;
  if (call.Write(SerializeMessage(first)) && WriteParts(call, slab)) call.WritesDone();
  grpc::ByteBuffer answer;
  const bool answered = call.Read(&answer);
  KVMESH_RETURN_IF_ERROR(call.Finish());
  v1::PutResponse response;
  if (answered && ParseMessage(&answer, &response)) return response;
  return absl::DataLossError("the answer is no PutResponse");
}

absl::StatusOr<v1::GetHeader> GetSlab(
    const std::shared_ptr<grpc::Channel>& channel, const v1::GetRequest& request,
    absl::Duration timeout,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_bytes,
    CallGroup* group, const Trace& trace) {
  RawCall call(channel, kGet, timeout, group, trace);
  v1::GetHeader header;
  bool ended = false;
  if (call.Write(SerializeMessage(request))) call.WritesDone();
  const absl::Status read = ReadAnswer(call, &header, &ended, on_bytes);
  if (!ended) call.Cancel();
  const absl::Status finished = call.Finish();
  // The store's own error explains a short answer; the end of a call that we gave up explains
  // nothing.
  if (ended && !finished.ok()) return finished;
  KVMESH_RETURN_IF_ERROR(read);
  return header;
}

}  // namespace kvmesh::rpc

#include "common/rpc/blob_client.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::rpc {
namespace {

using PutWriter = grpc::ClientWriterInterface<v1::PutRequest>;

// False: the call has ended; its status says why.
bool WriteParts(PutWriter& writer, absl::Span<const absl::string_view> parts) {
  v1::PutRequest request;
  std::string* chunk = request.mutable_chunk();
  chunk->reserve(kBlobChunkBytes);
  for (absl::string_view part : parts) {
    while (!part.empty()) {
      const size_t count = std::min(kBlobChunkBytes - chunk->size(), part.size());
      chunk->append(part.data(), count);
      part.remove_prefix(count);
      if (chunk->size() < kBlobChunkBytes) continue;
      if (!writer.Write(request)) return false;
      chunk->clear();
    }
  }
  return chunk->empty() || writer.Write(request);
}

uint64_t BytesOf(const v1::GetHeader& header) {
  uint64_t bytes = 0;
  for (const v1::ByteRange& range : header.ranges()) bytes += range.length();
  return bytes;
}

// `*ended`: the store has ended the call.
absl::Status ReadChunks(
    grpc::ClientReaderInterface<v1::GetResponse>& reader, v1::GetHeader* header, bool* ended,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_chunk) {
  v1::GetResponse response;
  *ended = !reader.Read(&response);
  if (*ended || !response.has_header()) {
    return absl::DataLossError("the answer has no header");
  }
  header->Swap(response.mutable_header());
  uint64_t left = BytesOf(*header);
  while (reader.Read(&response)) {
    if (response.has_header() || response.chunk().size() > left) {
      return absl::DataLossError("the answer has more bytes than its header says");
    }
    left -= response.chunk().size();
    KVMESH_RETURN_IF_ERROR(on_chunk(*header, response.chunk()));
  }
  *ended = true;
  if (left == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the answer lacks ", left, " bytes"));
}

}  // namespace

absl::StatusOr<v1::PutResponse> PutSlab(v1::BlobService::StubInterface& stub,
                                        const v1::PutHeader& header,
                                        absl::Span<const absl::string_view> parts,
                                        absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  v1::PutResponse response;
  const std::unique_ptr<PutWriter> writer(stub.Put(&context, &response));
  v1::PutRequest first;
  *first.mutable_header() = header;
  if (writer->Write(first) && WriteParts(*writer, parts)) writer->WritesDone();
  KVMESH_RETURN_IF_ERROR(FromGrpc(writer->Finish()));
  return response;
}

absl::StatusOr<v1::GetHeader> GetSlab(
    v1::BlobService::StubInterface& stub, const v1::GetRequest& request, absl::Duration timeout,
    absl::FunctionRef<absl::Status(const v1::GetHeader&, absl::string_view)> on_chunk) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  const auto reader = stub.Get(&context, request);
  v1::GetHeader header;
  bool ended = false;
  const absl::Status read = ReadChunks(*reader, &header, &ended, on_chunk);
  if (!ended) context.TryCancel();
  const absl::Status finished = FromGrpc(reader->Finish());
  // The store's own error explains a short answer; the end of a call that we gave up explains
  // nothing.
  if (ended && !finished.ok()) return finished;
  KVMESH_RETURN_IF_ERROR(read);
  return header;
}

}  // namespace kvmesh::rpc

#include "services/meta/grpc/store_hub.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "services/meta/grpc/meta_codec.h"
#include "services/meta/grpc/store_codec.h"

namespace kvmesh::meta {

void StoreHub::Add(StreamId stream, std::shared_ptr<StoreConnection> connection, MonoTime now) {
  if (streams_.size() >= kStreamsMax) {
    connection->Close(WithErrorInfo(
        absl::ResourceExhaustedError(absl::StrCat("at most ", kStreamsMax, " streams of stores")),
        ErrorInfo{.reason = "TOO_MANY_STORES"}));
    return;
  }
  connection->ReadNext();
  streams_.emplace(stream, Stream{.connection = std::move(connection), .added = now});
}

void StoreHub::Remove(StreamId stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  if (found->second.welcome) {
    const auto attached = attached_.find(*found->second.said);
    if (attached != attached_.end() && attached->second == stream) attached_.erase(attached);
  }
  streams_.erase(found);
  FailTexts(stream);
}

void StoreHub::Close(StreamId stream, const absl::Status& status) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  found->second.connection->Close(status);
  Remove(stream);
}

void StoreHub::CloseAll(const absl::Status& status) {
  while (!streams_.empty()) Close(streams_.begin()->first, status);
}

void StoreHub::ReadNext(StreamId stream) {
  if (const auto found = streams_.find(stream); found != streams_.end()) {
    found->second.connection->ReadNext();
  }
}

bool StoreHub::Send(const ToStore& message) {
  const auto found = streams_.find(message.stream);
  if (found == streams_.end()) return true;  // it is ending; the arbiter will hear of it
  if (std::holds_alternative<Welcome>(message.message) && found->second.said) {
    found->second.welcome = true;
    attached_[*found->second.said] = message.stream;
  }
  if (found->second.connection->Send(EncodeToStore(message))) return true;
  Close(message.stream, absl::ResourceExhaustedError("the store does not read its commands"));
  return false;
}

size_t StoreHub::waiting_max() const {
  size_t most = 0;
  for (const auto& [id, stream] : streams_) most = std::max(most, stream.connection->waiting());
  return most;
}

void StoreHub::SaidHello(const StoreHello& hello) {
  if (const auto found = streams_.find(hello.stream); found != streams_.end()) {
    found->second.said = hello.uid;
  }
}

void StoreHub::RequestText(const StoreUid& store, const SlabName& slab, uint64_t bytes_max,
                           MonoTime deadline, TextDone done) {
  const auto attached = attached_.find(store);
  if (attached == attached_.end() || texts_.size() >= kTextRequestsMax) return done(std::nullopt);
  const uint64_t number = next_text_++;
  v1::AttachStoreResponse frame;
  frame.mutable_text_request()->set_request(number);
  *frame.mutable_text_request()->mutable_slab() = EncodeSlab(slab);
  frame.mutable_text_request()->set_bytes_max(bytes_max);
  if (!streams_.at(attached->second).connection->Send(std::move(frame))) return done(std::nullopt);
  texts_.emplace(
      number,
      TextRequest{.stream = attached->second, .deadline = deadline, .done = std::move(done)});
}

void StoreHub::TakeText(StreamId stream, const v1::SlabText& text) {
  const auto found = texts_.find(text.request());
  // Late, or another store's.
  if (found == texts_.end() || found->second.stream != stream) return;
  const TextDone done = std::move(found->second.done);
  texts_.erase(found);
  done(text.has_text() ? std::optional(text.text()) : std::nullopt);
}

void StoreHub::FailTexts(StreamId stream) {
  std::vector<TextDone> failed;
  for (auto text = texts_.begin(); text != texts_.end();) {
    if (text->second.stream != stream) {
      ++text;
      continue;
    }
    failed.push_back(std::move(text->second.done));
    text = texts_.erase(text);
  }
  for (const TextDone& done : failed) done(std::nullopt);
}

void StoreHub::Tick(MonoTime now) {
  std::vector<StreamId> silent;
  for (const auto& [stream, state] : streams_) {
    if (!state.said && now - state.added > kHelloWait) silent.push_back(stream);
  }
  for (const StreamId stream : silent) {
    Close(stream, absl::InvalidArgumentError("no hello came in time"));
  }
  std::vector<TextDone> late;
  for (auto text = texts_.begin(); text != texts_.end();) {
    if (text->second.deadline > now) {
      ++text;
      continue;
    }
    late.push_back(std::move(text->second.done));
    text = texts_.erase(text);
  }
  for (const TextDone& done : late) done(std::nullopt);
}

}  // namespace kvmesh::meta

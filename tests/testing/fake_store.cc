#include "tests/testing/fake_store.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/rpc/slab_codec.h"
#include "common/rpc/status_bridge.h"
#include "common/slab/cut_points.h"

namespace kvmesh::testing {
namespace {

std::string NameOf(const v1::SlabId& slab) {
  return absl::StrCat(slab.key(), ".", slab.layers().begin(), "-", slab.layers().end(), ".",
                      slab.write_id());
}

}  // namespace

std::chrono::system_clock::time_point MinuteFromNow() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

v1::SlabAnnouncement AnnouncementOf(const FakeSlab& slab) {
  std::vector<slab::CutPoint> points;
  points.reserve(slab.cuts.size());
  for (const uint32_t bytes : slab.cuts) {
    points.push_back({.token_count = bytes / 4, .text_bytes = bytes});
  }
  slab::FillKeys(slab.key_namespace, slab.text, &points);
  v1::SlabAnnouncement announcement;
  announcement.set_model_layers(slab.model_layers);
  *announcement.mutable_slab() =
      rpc::EncodeSlab({.key = slab::ContentKey(slab.key_namespace, slab.text),
                       .layers = slab.layers,
                       .write_id = slab.write_id,
                       .key_namespace = slab.key_namespace,
                       .size_bytes = slab.size_bytes,
                       .token_count = static_cast<uint32_t>(slab.text.size() / 4),
                       .text_bytes = slab.text.size(),
                       .tokens_sha256 = Sha256Of(slab.text),
                       .block_hash = slab::BlockHash(slab.key_namespace, slab.text),
                       .tail_hash = slab::TailHash(slab.text),
                       .cut_points = points});
  return announcement;
}

void FakeStore::Put(const FakeSlab& slab) {
  v1::AttachStoreRequest frame;
  *frame.mutable_announced() = AnnouncementOf(slab);
  bool attached = false;
  {
    MutexLock lock(&mutex_);
    slabs_[NameOf(frame.announced().slab().slab())] = {frame.announced(), slab.text};
    attached = welcome_.has_value();
  }
  if (attached) Send(frame);
}

void FakeStore::Forget(const v1::SlabId& slab) {
  MutexLock lock(&mutex_);
  slabs_.erase(NameOf(slab));
}

size_t FakeStore::slabs() const {
  MutexLock lock(&mutex_);
  return slabs_.size();
}

std::vector<std::string> FakeStore::deleted() const {
  MutexLock lock(&mutex_);
  return deleted_;
}

std::vector<std::string> FakeStore::verified() const {
  MutexLock lock(&mutex_);
  return verified_;
}

v1::Incarnation FakeStore::incarnation() const {
  MutexLock lock(&mutex_);
  return seen_.value_or(v1::Incarnation());
}

absl::Status FakeStore::Attach(const std::shared_ptr<grpc::Channel>& channel) {
  Detach();
  stub_ = v1::MetaService::NewStub(channel);
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_wait_for_ready(true);
  context_->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(10));
  stream_ = stub_->AttachStore(context_.get());
  v1::AttachStoreRequest frame;
  v1::StoreHello& hello = *frame.mutable_hello();
  hello.set_protocol(options_.protocol);
  hello.set_store_id(std::string(InstanceId::FromHex(options_.id, "id").value().bytes()));
  hello.set_boot_id(boot_id_);
  hello.set_address(options_.address);
  hello.set_tier(options_.tier);
  hello.set_budget_bytes(options_.budget_bytes);
  {
    MutexLock lock(&mutex_);
    ended_.reset();
    welcome_.reset();
    if (seen_) *hello.mutable_incarnation_seen() = *seen_;
  }
  Send(frame);
  reader_ = std::thread([this] { Read(); });
  const bool answered = WaitUntil([this] {
    MutexLock lock(&mutex_);
    return welcome_.has_value() || ended_.has_value();
  });
  if (!answered) return absl::DeadlineExceededError("the arbiter did not answer the hello");
  if (const auto refused = ended()) return *refused;
  SendInventory();
  return absl::OkStatus();
}

void FakeStore::Detach() {
  if (context_ == nullptr) return;
  context_->TryCancel();
  reader_.join();
  MutexLock lock(&write_mutex_);
  stream_.reset();
  context_.reset();
}

std::optional<absl::Status> FakeStore::ended() const {
  MutexLock lock(&mutex_);
  return ended_;
}

void FakeStore::Send(const v1::AttachStoreRequest& frame) {
  MutexLock lock(&write_mutex_);
  if (stream_ != nullptr) stream_->Write(frame);  // a stream that has ended takes it no more
}

void FakeStore::SendInventory() {
  std::vector<v1::AttachStoreRequest> pages(1);
  {
    MutexLock lock(&mutex_);
    for (const auto& [name, held] : slabs_) {
      if (static_cast<size_t>(pages.back().inventory().slabs_size()) == options_.page_size) {
        pages.emplace_back();
      }
      *pages.back().mutable_inventory()->add_slabs() = held.announcement;
    }
  }
  pages.back().mutable_inventory()->set_last(true);
  for (const v1::AttachStoreRequest& page : pages) Send(page);
}

void FakeStore::Read() {
  v1::AttachStoreResponse frame;
  while (stream_->Read(&frame)) Obey(frame);
  const absl::Status status = rpc::FromGrpc(stream_->Finish());
  MutexLock lock(&mutex_);
  welcome_.reset();
  ended_ = status;
}

void FakeStore::Obey(const v1::AttachStoreResponse& frame) {
  v1::AttachStoreRequest answer;
  {
    MutexLock lock(&mutex_);
    if (frame.has_welcome()) {
      welcome_ = seen_ = frame.welcome().incarnation();
    } else if (frame.has_ping() && options_.answers_pings) {
      answer.mutable_pong();
    } else if (frame.has_delete_slab()) {
      const v1::SlabId& slab = frame.delete_slab().slab();
      deleted_.push_back(NameOf(slab));
      if (options_.answers_deletes) {
        slabs_.erase(NameOf(slab));
        *answer.mutable_removed()->mutable_slab() = slab;
        answer.mutable_removed()->set_cause(v1::REMOVAL_CAUSE_DELETED);
      }
    } else if (frame.has_verify_slab()) {
      const v1::SlabId& slab = frame.verify_slab().slab();
      verified_.push_back(NameOf(slab));
      *answer.mutable_verified()->mutable_slab() = slab;
      answer.mutable_verified()->set_sound(slabs_.contains(NameOf(slab)));
    } else if (frame.has_text_request() && options_.answers_texts) {
      const auto held = slabs_.find(NameOf(frame.text_request().slab()));
      answer.mutable_text()->set_request(frame.text_request().request());
      if (held != slabs_.end()) {
        answer.mutable_text()->set_text(
            held->second.text.substr(0, frame.text_request().bytes_max()));
      }
    }
  }
  if (answer.frame_case() != v1::AttachStoreRequest::FRAME_NOT_SET) Send(answer);
}

}  // namespace kvmesh::testing

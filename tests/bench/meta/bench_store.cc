#include "tests/bench/meta/bench_store.h"

#include <chrono>

#include "common/base/limits.h"
#include "common/rpc/slab_codec.h"
#include "tests/bench/meta/bench_parts.h"
#include "tools/kvmesh/chat_corpus.h"

namespace kvmesh::bench {
namespace {

constexpr int kPageSlabs = 1000;
constexpr uint32_t kModelLayers = 30;

}  // namespace

kvmesh::v1::SlabAnnouncement AnnouncementOf(const meta::RowOpened& row, const meta::RowSlab& slab) {
  kvmesh::v1::SlabAnnouncement announcement;
  announcement.set_model_layers(kModelLayers);
  *announcement.mutable_slab() = rpc::EncodeSlab({.key = row.key,
                                                  .layers = slab.layers,
                                                  .write_id = slab.write_id,
                                                  .key_namespace = cli::ChatCorpus::key_namespace(),
                                                  .size_bytes = slab.size_bytes,
                                                  .token_count = row.token_count,
                                                  .text_bytes = row.text_bytes,
                                                  .tokens_sha256 = row.tokens_sha256,
                                                  .block_hash = row.block_hash,
                                                  .tail_hash = row.tail_hash,
                                                  .cut_points = row.cut_points});
  return announcement;
}

void BenchStore::Attach(const std::shared_ptr<grpc::Channel>& channel, uint32_t count,
                        const RowAt& row_at) {
  Detach();
  welcome_ = false;
  detaching_ = false;
  stub_ = kvmesh::v1::MetaService::NewStub(channel);
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = stub_->AttachStore(context_.get());
  kvmesh::v1::AttachStoreRequest frame;
  kvmesh::v1::StoreHello& hello = *frame.mutable_hello();
  hello.set_protocol(limits::kProtocolVersion);
  hello.set_store_id(std::string(id_.bytes()));
  hello.set_boot_id(std::string(boot_.bytes()));
  hello.set_address("127.0.0.1:7001");
  hello.set_tier(tier_);
  hello.set_budget_bytes(budget_bytes_);
  Write(frame);
  reader_ = std::thread([this] { Read(); });
  AwaitTrue("the welcome", [this] { return welcome_.load(); });
  frame.Clear();
  for (uint32_t i = 0; i < count; ++i) {
    const meta::RowOpened row = row_at(i);
    for (const meta::RowSlab& slab : row.slabs) {
      *frame.mutable_inventory()->add_slabs() = AnnouncementOf(row, slab);
    }
    if (frame.inventory().slabs_size() + 2 <= kPageSlabs) continue;
    Write(frame);
    frame.Clear();
  }
  frame.mutable_inventory()->set_last(true);
  Write(frame);
  beats_ = std::thread([this] { Beat(); });
}

void BenchStore::Beat() {
  kvmesh::v1::AttachStoreRequest frame;
  frame.mutable_heartbeat();
  for (int tick = 0; !detaching_.load(); ++tick) {
    if (tick % 200 == 0) Write(frame);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void BenchStore::Detach() {
  if (context_ == nullptr) return;
  detaching_ = true;
  context_->TryCancel();
  reader_.join();
  beats_.join();
  MutexLock lock(&write_mutex_);
  stream_.reset();
  context_.reset();
}

void BenchStore::Announce(meta::RowOpened row, const WriteId& write_id) {
  for (meta::RowSlab& slab : row.slabs) {
    slab.write_id = write_id;
    kvmesh::v1::AttachStoreRequest frame;
    *frame.mutable_announced() = AnnouncementOf(row, slab);
    Write(frame);
  }
}

void BenchStore::Write(const kvmesh::v1::AttachStoreRequest& frame) {
  MutexLock lock(&write_mutex_);
  if (stream_ != nullptr) stream_->Write(frame);  // Read says why a stream ends
}

void BenchStore::Read() {
  kvmesh::v1::AttachStoreResponse frame;
  while (stream_->Read(&frame)) {
    if (frame.has_welcome()) welcome_ = true;
    kvmesh::v1::AttachStoreRequest answer;
    if (frame.has_delete_slab()) {
      *answer.mutable_removed()->mutable_slab() = frame.delete_slab().slab();
      answer.mutable_removed()->set_cause(kvmesh::v1::REMOVAL_CAUSE_DELETED);
      deletes_.fetch_add(1);
    } else if (frame.has_ping()) {
      answer.mutable_pong();
    } else {
      continue;
    }
    MutexLock lock(&write_mutex_);
    stream_->Write(answer);
  }
  const grpc::Status status = stream_->Finish();
  if (!detaching_.load()) Fail("the arbiter has ended a store's stream: " + status.error_message());
}

}  // namespace kvmesh::bench

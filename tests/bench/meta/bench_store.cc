#include "tests/bench/meta/bench_store.h"

#include <chrono>

#include "common/base/limits.h"
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
  kvmesh::v1::SlabInfo& info = *announcement.mutable_slab();
  info.mutable_slab()->set_key(row.key.ToHex());
  info.mutable_slab()->mutable_layers()->set_begin(slab.layers.begin);
  info.mutable_slab()->mutable_layers()->set_end(slab.layers.end);
  info.mutable_slab()->set_write_id(slab.write_id.ToHex());
  info.set_size_bytes(slab.size_bytes);
  info.set_charged_bytes(slab.size_bytes);
  info.set_token_count(row.token_count);
  info.set_text_bytes(row.text_bytes);
  info.set_tokens_sha256(std::string(row.tokens_sha256.bytes()));
  *info.mutable_namespace_() = CorpusNamespace();
  info.set_block_hash(row.block_hash);
  info.set_tail_hash(row.tail_hash);
  for (const slab::CutPoint& point : row.cut_points) {
    kvmesh::v1::CutPoint& cut = *info.add_cut_points();
    cut.set_token_count(point.token_count);
    cut.set_text_bytes(point.text_bytes);
    cut.set_block_hash(point.block_hash);
    cut.set_tail_hash(point.tail_hash);
    cut.set_key(point.key.ToHex());
  }
  info.set_save_reason("cold");
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

#include "common/rpc/checkpoint_codec.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/base/limits.h"

namespace kvmesh::rpc {
namespace {

v1::HopRestore SoundRestore(uint32_t hop) {
  v1::HopRestore restore;
  restore.set_hop_index(hop);
  restore.set_tokens(7);
  restore.set_last_step(2);
  v1::SlabRef& slab = *restore.add_slabs();
  slab.set_store_address("store:1");
  slab.set_key(std::string(32, 'k'));
  slab.mutable_layers()->set_begin(1);
  slab.mutable_layers()->set_end(3);
  slab.set_write_id(std::string(16, 'w'));
  slab.set_tokens_sha256(std::string(32, 't'));
  return restore;
}

// The refusal of an Open whose first restore was changed; empty: it is sound.
std::string Refusal(const std::function<void(v1::HopRestore&)>& change) {
  v1::Open open;
  *open.add_restore() = SoundRestore(0);
  change(*open.mutable_restore(0));
  const absl::Status status = DecodeRestores(open).status();
  if (!status.ok()) EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CheckpointCodec, WhatIsEncodedComesBack) {
  v1::Open open;
  *open.add_restore() = SoundRestore(0);
  *open.add_restore() = SoundRestore(3);
  const auto restores = DecodeRestores(open);
  ASSERT_TRUE(restores.ok()) << restores.status();
  ASSERT_EQ(restores->size(), 2u);
  EXPECT_EQ((*restores)[1].hop_index, 3u);
  EXPECT_EQ((*restores)[1].slabs[0].layers, (LayerRange{1, 3}));
  v1::Open again;
  EncodeRestores(*restores, &again);
  EXPECT_EQ(again.SerializeAsString(), open.SerializeAsString());
}

TEST(CheckpointCodec, EachFieldIsCheckedOnBothSidesOfItsLimit) {
  EXPECT_EQ(Refusal([](v1::HopRestore&) {}), "");
  EXPECT_EQ(Refusal([](v1::HopRestore& r) { r.set_tokens(0); }),
            "open.restore.tokens is 0; it must lie between 1 and 1048576");
  EXPECT_EQ(Refusal([](v1::HopRestore& r) { r.set_tokens(limits::kHistoryTokensMax); }), "");
  EXPECT_NE(Refusal([](v1::HopRestore& r) { r.set_tokens(limits::kHistoryTokensMax + 1); }), "");
  EXPECT_EQ(Refusal([](v1::HopRestore& r) { r.set_hop_index(63); }), "");
  EXPECT_EQ(Refusal([](v1::HopRestore& r) { r.set_hop_index(64); }),
            "open.restore.hop_index is 64; it must lie between 0 and 63");
  EXPECT_EQ(Refusal([](v1::HopRestore& r) { r.clear_slabs(); }),
            "open.restore.slabs count is 0; it must lie between 1 and 64");
  EXPECT_NE(Refusal([](v1::HopRestore& r) {
              for (uint32_t i = 0; i < limits::kHopsMax; ++i) *r.add_slabs() = r.slabs(0);
            }),
            "");
  EXPECT_NE(Refusal([](v1::HopRestore& r) { r.set_last_step(limits::kHistoryTokensMax + 1); }), "");
}

TEST(CheckpointCodec, EachFieldOfASlabIsChecked) {
  const auto of_slab = [](const std::function<void(v1::SlabRef&)>& change) {
    return Refusal([&](v1::HopRestore& r) { change(*r.mutable_slabs(0)); });
  };
  EXPECT_EQ(of_slab([](v1::SlabRef& s) { s.clear_store_address(); }),
            "open.restore.slabs.store_address length is 0; it must lie between 1 and 256");
  EXPECT_EQ(of_slab([](v1::SlabRef& s) { s.set_store_address(std::string(256, 'a')); }), "");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.set_store_address(std::string(257, 'a')); }), "");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.set_key(std::string(31, 'k')); }), "");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.set_write_id(std::string(17, 'w')); }), "");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.clear_tokens_sha256(); }), "");
  EXPECT_EQ(of_slab([](v1::SlabRef& s) { s.mutable_layers()->set_begin(3); }),
            "open.restore.slabs.layers.begin is 3; it must lie between 0 and 2");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.clear_layers(); }), "");
  EXPECT_NE(of_slab([](v1::SlabRef& s) { s.mutable_layers()->set_end(limits::kLayersMax + 1); }),
            "");
}

TEST(CheckpointCodec, AHopIsNamedOnce) {
  v1::Open open;
  *open.add_restore() = SoundRestore(2);
  *open.add_restore() = SoundRestore(2);
  EXPECT_EQ(DecodeRestores(open).status().message(), "open.restore names hop 2 twice");
}

}  // namespace
}  // namespace kvmesh::rpc

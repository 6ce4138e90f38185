#include "common/rpc/message_pool.h"

#include <gtest/gtest.h>

#include <string>

#include "kvmesh/v1/meta.pb.h"

namespace kvmesh::rpc {
namespace {

using LookupPool = MessagePool<v1::LookupRequest, v1::LookupResponse>;

TEST(MessagePool, ARequestComesClearedAndWithTheMemoryThatItHad) {
  LookupPool pool(4, 1 << 20);
  auto* pair = pool.AllocateMessages();
  pair->request()->message.set_text(std::string(8192, 'x'));
  const char* memory = pair->request()->message.text().data();
  pair->Release();
  pair = pool.AllocateMessages();
  EXPECT_EQ(pair->request()->message.ByteSizeLong(), 0U);
  const std::string shorter(8000, 'y');
  pair->request()->message.set_text(shorter.data(), shorter.size());
  EXPECT_EQ(pair->request()->message.text().data(), memory);
  pair->Release();
}

TEST(MessagePool, APairThatIsOutIsNobodyElses) {
  LookupPool pool(4, 1 << 20);
  auto* first = pool.AllocateMessages();
  auto* second = pool.AllocateMessages();
  EXPECT_NE(first->request(), second->request());
  EXPECT_NE(first->response(), second->response());
  first->Release();
  second->Release();
  EXPECT_EQ(pool.idle(), 2U);
}

TEST(MessagePool, WhatIsKeptIsBounded) {
  LookupPool pool(1, 100);
  auto* first = pool.AllocateMessages();
  auto* second = pool.AllocateMessages();
  first->Release();
  second->Release();
  EXPECT_EQ(pool.idle(), 1U);
  for (const size_t bytes : {90U, 101U}) {
    auto* pair = pool.AllocateMessages();
    pair->request()->message.set_text(std::string(bytes, 'x'));
    pair->Release();
    EXPECT_EQ(pool.idle(), bytes <= 100 ? 1U : 0U) << bytes;
  }
}

}  // namespace
}  // namespace kvmesh::rpc

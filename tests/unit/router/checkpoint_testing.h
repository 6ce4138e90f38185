// Slabs and effects for tests of what a router does with checkpoints.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "services/router/core/effects.h"

namespace kvmesh::router {

inline StoredSlab Slab(LayerRange layers, const std::string& text = "row") {
  StoredSlab slab{.tier = "ram"};
  slab.ref = {.store_address = "store:1",
              .key = Sha256Of(text),
              .layers = layers,
              .write_id = {},
              .tokens_sha256 = Sha256Of(absl::StrCat("ids of ", text))};
  return slab;
}

// Those of one kind, in order; the others stay.
template <typename E>
std::vector<E> TakeAll(Effects& effects) {
  std::vector<E> found;
  Effects others;
  for (Effect& effect : effects) {
    if (E* one = std::get_if<E>(&effect)) {
      found.push_back(std::move(*one));
    } else {
      others.push_back(std::move(effect));
    }
  }
  effects = std::move(others);
  return found;
}

template <typename E>
E TakeOnly(Effects& effects) {
  std::vector<E> found = TakeAll<E>(effects);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? E() : std::move(found[0]);
}

template <typename E>
E Peek(const Effects& effects) {
  for (const Effect& effect : effects) {
    if (const E* one = std::get_if<E>(&effect)) return *one;
  }
  ADD_FAILURE() << "no such effect";
  return E();
}

}  // namespace kvmesh::router

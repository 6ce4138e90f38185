// What a read index knows when it follows the arbiter's deltas, and nothing else.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "services/meta/core/arbiter.h"
#include "tests/unit/meta/arbiter_values.h"

namespace kvmesh::meta::testing {

class IndexFollower {
 public:
  // Empty, or what a read index could not have followed.
  std::string Follow(const std::vector<Effect>& effects) {
    for (const Effect& effect : effects) {
      std::string wrong = std::visit([this](const auto& it) { return Do(it); }, effect);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

  bool HasRow(const RowHit& hit) const {
    const auto row = rows_.find(hit.row);
    return row != rows_.end() && row->second.key == hit.key;
  }
  const std::map<RowId, RowOpened>& rows() const { return rows_; }
  bool Readable(const RowOpened& row) const {
    for (const RowSlab& slab : row.slabs) {
      const auto store = readable_.find(slab.slot);
      if (store == readable_.end() || !store->second) return false;
    }
    return true;
  }

  std::vector<std::string> State() const {
    std::vector<std::string> lines;
    for (const auto& [id, row] : rows_) {
      std::string line =
          absl::StrCat("index k", NumberOf(row.key), " t", NumberOf(row.tokens_sha256), " cuts");
      for (const slab::CutPoint& point : row.cut_points) {
        absl::StrAppend(&line, " ", point.token_count);
      }
      for (const RowSlab& slab : row.slabs) {
        absl::StrAppend(&line, " [", slab.layers.begin, ")@", NumberOf(stores_.at(slab.slot)));
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

 private:
  std::string Do(const Reply&) { return ""; }
  std::string Do(const ToStore&) { return ""; }
  std::string Do(const CloseStream&) { return ""; }
  std::string Do(const NamespaceOpened& it) {
    return namespaces_.insert(it.id).second ? "" : "a namespace was opened twice";
  }
  std::string Do(const NamespaceClosed& it) {
    for (const auto& [id, row] : rows_) {
      if (row.key_namespace == it.id) return "a namespace was closed under a row";
    }
    return namespaces_.erase(it.id) == 1 ? "" : "a namespace was closed that was not open";
  }
  std::string Do(const StoreOpened& it) {
    stores_[it.slot] = it.uid;
    return "";
  }
  std::string Do(const StoreReadable& it) {
    if (!stores_.contains(it.slot)) return "a store is readable that was not opened";
    if (readable_[it.slot] == it.readable) return "a store's readability was said twice";
    readable_[it.slot] = it.readable;
    return "";
  }
  std::string Do(const RowOpened& it) {
    if (!namespaces_.contains(it.key_namespace)) return "a row of no namespace was opened";
    for (const RowSlab& slab : it.slabs) {
      if (!stores_.contains(slab.slot)) return "a row in no store was opened";
    }
    for (const auto& [id, row] : rows_) {
      if (row.key == it.key) return "a second row of one key was opened";
    }
    return rows_.emplace(it.row, it).second ? "" : "a row was opened twice";
  }
  std::string Do(const RowClosed& it) {
    return rows_.erase(it.row) == 1 ? "" : "a row was closed that was not open";
  }
  std::string Do(const RowUsed& it) {
    return rows_.contains(it.row) ? "" : "a row was used that was not open";
  }

  std::map<RowId, RowOpened> rows_;
  std::set<NamespaceId> namespaces_;
  std::map<StoreSlot, StoreUid> stores_;
  std::map<StoreSlot, bool> readable_;
};

}  // namespace kvmesh::meta::testing

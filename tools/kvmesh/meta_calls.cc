#include "tools/kvmesh/meta_calls.h"

#include <chrono>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hex.h"
#include "common/rpc/flags.h"
#include "tools/kvmesh/dial.h"

namespace kvmesh::cli {

void AddMetaFlag(CLI::App& command, std::string* meta) {
  command.add_option("--meta", *meta, "Address of the arbiter, host:port")
      ->required()
      ->check(rpc::Address());
}

std::unique_ptr<v1::MetaService::Stub> MetaStub(const std::string& meta) {
  return v1::MetaService::NewStub(Dial(meta, rpc::Role::kMeta));
}

std::chrono::system_clock::time_point MetaDeadline() {
  return std::chrono::system_clock::now() + std::chrono::seconds(10);
}

Json RowJson(const v1::RowInfo& row) {
  Json slabs = Json::array();
  for (const v1::SlabPlace& place : row.slabs()) {
    slabs.push_back({{"layers", LayersJson(place.slab().layers())},
                     {"write_id", place.slab().write_id()},
                     {"store", place.address()},
                     {"tier", place.tier()},
                     {"size_bytes", place.size_bytes()}});
  }
  return {{"key", row.key()},
          {"write_id", row.write_id()},
          {"token_count", row.token_count()},
          {"text_bytes", row.text_bytes()},
          {"tokens_sha256", HexEncode(row.tokens_sha256())},
          {"slabs", slabs}};
}

Json NamespaceJson(const v1::CacheNamespace& key_namespace) {
  return {{"model_fp", HexEncode(key_namespace.model_fp())},
          {"quant", key_namespace.quant()},
          {"ctx_params", HexEncode(key_namespace.ctx_params_hash())}};
}

Json LayersJson(const v1::LayerRange& layers) {
  return absl::StrCat(layers.begin(), ":", layers.end());
}

std::string ReasonName(v1::SaveReason reason) {
  constexpr size_t kPrefix = sizeof("SAVE_REASON_") - 1;
  const std::string& name = v1::SaveReason_Name(reason);
  return name.size() <= kPrefix ? "?" : absl::AsciiStrToLower(name.substr(kPrefix));
}

std::string TiersOf(const v1::RowInfo& row) {
  std::set<std::string> tiers;
  for (const v1::SlabPlace& place : row.slabs()) tiers.insert(place.tier());
  return absl::StrJoin(tiers, ",");
}

}  // namespace kvmesh::cli

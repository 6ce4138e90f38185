// A GenerationScript with an arbiter and stores to play.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/fake_tokenizer.h"
#include "tests/unit/router/checkpoint_testing.h"
#include "tests/unit/router/generation_script.h"

namespace kvmesh::router {

// Letters as tokens, so that a text of n bytes has n tokens; gates of a few tokens.
struct CheckpointWorld {
  CheckpointWorld() {
    setup.options.layer_count = 8;
    setup.options.gates = {.min_tokens = 4,
                           .cold_min_tokens = 4,
                           .cold_max_tokens = 1000,
                           .continued_interval = 3,
                           .boundary_trim_tokens = 1,
                           .boundary_align_tokens = 4,
                           .restore_min_tokens = 4};
  }
  const testing::FakeTokenizer tokenizer = testing::LetterTokenizer();
  CheckpointSetup setup{.options = {}, .tokenizer = tokenizer};
};

inline RoutePlan CheckpointRoute() {
  RoutePlan plan = TwoHops();
  plan.checkpoints = true;
  plan.state_bytes = {{.per_token = 10}, {.per_token = 10}};
  return plan;
}

class CheckpointScript : public GenerationScript {
 public:
  static GenerationSpec Letters(size_t prompt_tokens = 10, uint32_t max_tokens = 20) {
    GenerationSpec spec = Spec(0, max_tokens);
    for (size_t i = 0; i < prompt_tokens; ++i) spec.prompt.push_back(static_cast<uint32_t>(i % 26));
    return spec;
  }

  explicit CheckpointScript(const CheckpointWorld& world, GenerationSpec spec = Letters())
      : GenerationScript(std::move(spec), nullptr, &world.setup) {}

  // Start, the route, and a look-up that finds nothing.
  void RunCold(RoutePlan plan = CheckpointRoute()) {
    Run(std::move(plan));
    Miss();
  }
  // Start, the route, and a row that ends at `cut`.
  void RunHit(uint64_t cut) {
    Run(CheckpointRoute());
    Find(cut);
    Join(cut);
  }

  void Miss() { Input(&Generation::OnLookup, Only<LookupRow>().call, NoRow()); }
  void Find(uint64_t cut) {
    const auto lookup = Only<LookupRow>();
    lease = lookup.lease;
    Input(&Generation::OnLookup, lookup.call,
          absl::StatusOr<std::optional<FoundRow>>(FoundRow{.lease = lookup.lease,
                                                           .cut_tokens = cut,
                                                           .cut_text_bytes = cut,
                                                           .row_tokens = cut,
                                                           .slabs = {Slab({0, 4}), Slab({4, 8})}}));
  }
  // The row's ids are the prompt's own, or `ids`.
  void Join(uint64_t cut, std::optional<std::vector<uint32_t>> ids = std::nullopt) {
    const auto read = Only<ReadCheckpoint>();
    Seam seam{.ids = ids.value_or(read.prompt->ids), .stored_tokens = cut};
    seam.drifted_tokens = ids.has_value() ? 1 : 0;
    Input(&Generation::OnCheckpoint, read.call,
          absl::StatusOr<CheckpointRead>(
              CheckpointRead{.seam = std::move(seam), .has_output_row = true}));
  }
  void Reserved(const ReserveRow& reserve, absl::Duration ttl = absl::InfiniteDuration()) {
    Reservation reservation{.ttl = ttl};
    reservation.write_id.mutable_data()[0] = ++writes_;
    for (const auto& [layers, bytes] : reserve.ranges) {
      reservation.stores.emplace_back(layers, absl::StrCat("store:", layers.begin));
    }
    Input(&Generation::OnReserved, reserve.call, absl::StatusOr<Reservation>(reservation));
  }
  void NotReserved(const ReserveRow& reserve, const absl::Status& status) {
    Input(&Generation::OnReserved, reserve.call, absl::StatusOr<Reservation>(status));
  }
  void FragmentFound(const AwaitFragment& await, size_t position) {
    Input(&Generation::OnFragment, await.call,
          absl::StatusOr<FoundFragment>(FoundFragment{position, Slab(await.layers, "fragment")}));
  }
  void NoFragment(const AwaitFragment& await) {
    Input(&Generation::OnFragment, await.call,
          absl::StatusOr<FoundFragment>(absl::NotFoundError("none appeared")));
  }
  void Opened(uint32_t hop) {
    Answer(forward::Opened{.hop_index = hop, .held = 1, .restored = true});
  }

  // Calls an answer's input; the effects are those that follow.
  template <typename Method, typename Answer>
  void Input(Method method, MetaCall call, Answer answer) {
    effects.clear();
    (generation.*method)(call, std::move(answer), now);
    Collect();
  }
  static absl::StatusOr<std::optional<FoundRow>> NoRow() { return std::optional<FoundRow>(); }

  std::vector<std::string> SaveResults() const {
    std::vector<std::string> results;
    for (const SaveEnded& save : All<SaveEnded>()) {
      results.push_back(absl::StrCat(SaveReasonName(save.reason), ":", save.result));
    }
    return results;
  }
  // Where the first effect of each kind stands.
  template <typename E>
  size_t IndexOf() const {
    for (size_t i = 0; i < effects.size(); ++i) {
      if (std::holds_alternative<E>(effects[i])) return i;
    }
    ADD_FAILURE() << "no such effect";
    return 0;
  }

  LeaseId lease;

 private:
  uint8_t writes_ = 0;
};

inline absl::Status MissAt(uint32_t hop, const std::string& cause,
                           const std::optional<forward::SlabRef>& bad_slab = std::nullopt) {
  ErrorInfo info{.reason = std::string(reason::kCacheMiss),
                 .metadata = {{"cause", cause}, {"hop", absl::StrCat(hop)}}};
  if (bad_slab.has_value()) {
    info.metadata["slab_key"] = bad_slab->key.ToHex();
    info.metadata["slab_layers"] = absl::StrCat(bad_slab->layers.begin, ":", bad_slab->layers.end);
    info.metadata["slab_write_id"] = bad_slab->write_id.ToHex();
    info.metadata["slab_is_bad"] = "true";
  }
  return WithErrorInfo(absl::AbortedError("miss"), info);
}

}  // namespace kvmesh::router

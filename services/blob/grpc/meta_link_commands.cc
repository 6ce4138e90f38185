// What an attached store does at the arbiter's word.
#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "services/blob/grpc/meta_link.h"

namespace kvmesh::blob {

absl::Status MetaLink::Obey(const ArbiterCommand& command, Talk& talk) {
  context_.metrics.CountCommand(NameOf(command));
  if (!talk.welcomed && !std::holds_alternative<Welcome>(command) &&
      !std::holds_alternative<PingCommand>(command)) {
    return absl::InvalidArgumentError("the arbiter sent a command before its welcome");
  }
  return std::visit([&](const auto& known) { return Do(known, talk); }, command);
}

absl::Status MetaLink::Do(const Welcome& welcome, Talk& talk) {
  KVMESH_RETURN_IF_ERROR(identity_.Obey(welcome.incarnation));
  talk.welcomed = true;
  return absl::OkStatus();
}

absl::Status MetaLink::Do(const DeleteCommand& command, Talk&) {
  const bool taken = context_.deletes.Submit([this, name = command.name] {
    context_.store.Delete(name, [this, name](const absl::StatusOr<bool>& removed) {
      context_.UpdateUsage();
      if (removed.ok()) {
        Say(SlabGone{.name = name, .cause = SlabGone::Cause::kDeleted});
      } else {
        // It is still here. The arbiter will ask again when it has seen the inventory.
        GiveUp(removed.status());
      }
    });
  });
  return taken ? absl::OkStatus() : TooMuch("too many deletes");
}

absl::Status MetaLink::Do(const VerifyCommand& command, Talk&) {
  const bool taken = context_.verifies.Submit([this, name = command.name] {
    const absl::Status verified =
        context_.store.Verify(name, [this](uint64_t bytes) { return context_.pacer.Take(bytes); });
    context_.UpdateUsage();
    if (absl::IsUnavailable(verified)) return GiveUp(verified);
    Say(SlabChecked{.name = name, .sound = verified.ok()});
  });
  return taken ? absl::OkStatus() : TooMuch("too many verifications");
}

absl::Status MetaLink::Do(const DescribeCommand& command, Talk&) {
  Say(SlabHere{.name = command.name, .asked = true});
  return absl::OkStatus();
}

absl::Status MetaLink::Do(const RecordUseCommand& command, Talk&) {
  const bool taken = chores_.Submit([this, uses = command.uses] {
    const uint64_t now_s = WallClockSeconds();
    for (const SlabUse& use : uses) {
      const auto idle_s = static_cast<uint64_t>(absl::ToInt64Seconds(use.idle));
      // A slab that has gone, or that cannot be written to now, loses a mark of use and no more.
      context_.store.RecordUse(use.name, use.hit_count, now_s - std::min(now_s, idle_s))
          .IgnoreError();
    }
  });
  return taken ? absl::OkStatus() : TooMuch("too many marks of use");
}

absl::Status MetaLink::Do(const PingCommand&, Talk& talk) {
  talk.pong_due = true;
  return absl::OkStatus();
}

absl::Status MetaLink::Do(const TextCommand& command, Talk&) {
  const bool taken = chores_.Submit([this, command] {
    absl::StatusOr<std::string> text = context_.store.ReadText(command.name, command.bytes_max);
    SlabText answer{.request = command.request};
    if (text.ok()) answer.text = *std::move(text);
    Say(std::move(answer));
  });
  return taken ? absl::OkStatus() : TooMuch("too many texts to read");
}

}  // namespace kvmesh::blob

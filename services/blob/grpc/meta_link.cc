#include "services/blob/grpc/meta_link.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"

namespace kvmesh::blob {
namespace {

constexpr size_t kChoresMax = 1024;
constexpr absl::Duration kRecheck = absl::Seconds(1);

double RandomSpread() {
  uint32_t bits = 0;
  RandomBytes(reinterpret_cast<uint8_t*>(&bits), sizeof(bits));
  return static_cast<double>(bits) / 4294967296.0;
}

}  // namespace

// The call. The link's thread alone starts operations, and holds the call until it lets go of it;
// reactions note what happened under the link's mutex. Deletes itself.
class MetaLink::Stream final
    : public grpc::ClientBidiReactor<v1::AttachStoreRequest, v1::AttachStoreResponse> {
 public:
  explicit Stream(MetaLink& link) : link_(link) {
    link_.stub_->async()->AttachStore(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  void Write(v1::AttachStoreRequest frame) {
    outgoing_ = std::move(frame);
    StartWrite(&outgoing_);
  }
  const v1::AttachStoreResponse& incoming() const { return incoming_; }
  void ReadOn() { StartRead(&incoming_); }
  void Cancel() { context_.TryCancel(); }
  // Last; the stream may be gone then.
  void LetGo() { RemoveHold(); }

  void OnReadDone(bool ok) override {
    MutexLock lock(&link_.mutex_);
    (ok ? link_.came_ : link_.reading_ended_) = true;
    link_.changed_.NotifyAll();
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&link_.mutex_);
    link_.write_runs_ = false;
    link_.changed_.NotifyAll();
  }
  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(&link_.mutex_);
      link_.stream_ended_ = rpc::FromGrpc(status);
      link_.changed_.NotifyAll();
    }
    delete this;
  }

 private:
  MetaLink& link_;
  grpc::ClientContext context_;
  v1::AttachStoreResponse incoming_;
  v1::AttachStoreRequest outgoing_;
};

MetaLink::MetaLink(MetaLinkOptions options, ServiceContext& context, StoreIdentity identity)
    : options_(std::move(options)),
      facts_(options_.facts),
      context_(context),
      identity_(std::move(identity)),
      back_off_(options_.delay_first, options_.delay_longest),
      stub_(v1::MetaService::NewStub(
          rpc::MakeChannel(options_.arbiter, options_.tls, rpc::Role::kMeta))),
      attached_(context.metrics.metrics().Gauge("attached", "Whether the arbiter knows all slabs")),
      chores_(1, kChoresMax),
      news_(options_.news_max) {
  for (const std::string& complaint : identity_.complaints()) LOG(WARNING) << complaint;
  attached_.Set(0);
}

MetaLink::~MetaLink() {
  Stop();
}

void MetaLink::Start(const std::string& address) {
  facts_.address = address;
  thread_ = std::thread([this] { Run(); });
}

void MetaLink::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

// ---- what happens here

void MetaLink::OnPut(const PutResult& put) {
  Say(SlabHere{.name = put.info.name});
}

// Also after a quarantine, of which the arbiter has heard then: it says nothing new.
void MetaLink::OnRemoved(const SlabName& name) {
  Say(SlabGone{.name = name, .cause = SlabGone::Cause::kOther});
}

void MetaLink::OnQuarantined(const SlabName& name, const absl::Status& why) {
  Say(SlabGone{.name = name, .cause = SlabGone::Cause::kQuarantined});
}

void MetaLink::Say(News news) {
  {
    MutexLock lock(&mutex_);
    if (!listening_) return;  // the next inventory says it
    news_.Push(std::move(news));
  }
  changed_.NotifyAll();
}

void MetaLink::GiveUp(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (listening_ && !given_up_) given_up_ = why;
  }
  changed_.NotifyAll();
}

absl::Status MetaLink::TooMuch(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, " wait here"));
}

// ---- one stream after the other

void MetaLink::Run() {
  while (true) {
    const MonoTime started = context_.clock.Now();
    const absl::Status ended = Attach();
    attached_.Set(0);
    // A stream that is always given up at once must not become a loop of inventories.
    if (context_.clock.Now() - started > options_.delay_longest) back_off_.Reset();
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    Log(ended);
    WaitBeforeNext(ended);
  }
}

void MetaLink::Log(const absl::Status& ended) {
  const std::string reason = ended.ToString();
  if (reason == logged_) return;
  logged_ = reason;
  LOG(WARNING) << "not attached to the arbiter at " << options_.arbiter << ": " << reason;
}

void MetaLink::WaitBeforeNext(const absl::Status& ended) {
  absl::Duration delay = back_off_.Next(RandomSpread());
  if (const auto wanted = RetryDelayOf(ended)) {
    delay = std::max(delay, std::min(*wanted, options_.delay_longest));
  }
  const MonoTime until = context_.clock.Now() + delay;
  MutexLock lock(&mutex_);
  while (!stopping_ && context_.clock.Now() < until) {
    changed_.WaitFor(&mutex_, until - context_.clock.Now());
  }
}

absl::Status MetaLink::Attach() {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the store drains");
    news_.Clear();
    given_up_.reset();
    stream_ended_.reset();
    came_ = reading_ended_ = false;
    listening_ = write_runs_ = true;
  }
  auto* stream = new Stream(*this);
  v1::AttachStoreRequest hello;
  *hello.mutable_hello() = EncodeHello(facts_, identity_);
  stream->Write(std::move(hello));
  const MonoTime now = context_.clock.Now();
  Talk talk{.heartbeat_at = now + options_.heartbeat, .waiting_since = now};
  absl::Status given_up = Converse(*stream, talk);
  if (!given_up.ok()) stream->Cancel();
  stream->LetGo();
  MutexLock lock(&mutex_);
  listening_ = false;
  news_.Clear();
  while (!stream_ended_) changed_.WaitFor(&mutex_, kRecheck);
  if (!given_up.ok()) return given_up;
  return stream_ended_->ok() ? absl::UnavailableError("it ended the stream") : *stream_ended_;
}

absl::Status MetaLink::Converse(Stream& stream, Talk& talk) {
  while (true) {
    const Turn turn = WaitForTurn(talk);
    if (turn.stopping) return absl::CancelledError("the store drains");
    if (turn.overflowed) return TooMuch("more news than the arbiter takes");
    {
      MutexLock lock(&mutex_);
      if (given_up_) return *given_up_;
    }
    if (turn.came) {
      KVMESH_ASSIGN_OR_RETURN(const ArbiterCommand command, DecodeCommand(stream.incoming()));
      KVMESH_RETURN_IF_ERROR(Obey(command, talk));
      {
        MutexLock lock(&mutex_);
        came_ = false;
      }
      stream.ReadOn();
    } else if (turn.ended) {
      return absl::OkStatus();
    }
    if (turn.can_write) {
      if (std::optional<v1::AttachStoreRequest> frame = NextFrame(talk)) {
        {
          MutexLock lock(&mutex_);
          write_runs_ = true;
        }
        talk.waiting_since = context_.clock.Now();
        stream.Write(*std::move(frame));
      }
    } else if (context_.clock.Now() - talk.waiting_since > options_.silence_max) {
      return absl::DeadlineExceededError("the arbiter neither answers nor takes a frame");
    }
  }
}

MetaLink::Turn MetaLink::WaitForTurn(const Talk& talk) {
  MutexLock lock(&mutex_);
  while (true) {
    const MonoTime now = context_.clock.Now();
    const bool idle = !write_runs_ && talk.welcomed;  // waits for nothing of the arbiter
    const Turn turn{.stopping = stopping_,
                    .ended = reading_ended_,
                    .came = came_,
                    .can_write = !write_runs_ && HasSomethingToSay(talk),
                    .overflowed = news_.overflowed()};
    const bool late = !idle && now - talk.waiting_since > options_.silence_max;
    if (turn.stopping || turn.ended || turn.came || turn.can_write || turn.overflowed || late ||
        given_up_) {
      return turn;
    }
    const MonoTime until = idle ? talk.heartbeat_at : talk.waiting_since + options_.silence_max;
    changed_.WaitFor(&mutex_, std::clamp(until - now, absl::Milliseconds(1), kRecheck));
  }
}

bool MetaLink::HasSomethingToSay(const Talk& talk) const {
  if (talk.pong_due) return true;
  if (!talk.welcomed) return false;
  return !talk.inventory_done || !news_.empty() || context_.clock.Now() >= talk.heartbeat_at;
}

// ---- what is said

std::optional<v1::AttachStoreRequest> MetaLink::NextFrame(Talk& talk) {
  v1::AttachStoreRequest frame;
  if (talk.pong_due) {
    talk.pong_due = false;
    frame.mutable_pong();
    return frame;
  }
  if (!talk.inventory_done) {
    *frame.mutable_inventory() = NextPage(talk);
    if (talk.inventory_done) {
      attached_.Set(1);
      logged_.clear();
      LOG(INFO) << "attached to the arbiter at " << options_.arbiter;
    }
    return frame;
  }
  if (context_.clock.Now() >= talk.heartbeat_at) {
    talk.heartbeat_at = context_.clock.Now() + options_.heartbeat;
    *frame.mutable_heartbeat() = EncodeHeartbeat(context_.store.usage(), context_.store.OpenPuts());
    return frame;
  }
  return NextNews();
}

v1::InventoryPage MetaLink::NextPage(Talk& talk) {
  const Listing listing = context_.store.List(talk.listed, kInventoryPageMax);
  const uint64_t now_s = WallClockSeconds();
  v1::InventoryPage page;
  for (const SlabInfo& info : listing.slabs) *page.add_slabs() = EncodeAnnouncement(info, now_s);
  if (!listing.complete) talk.listed = listing.slabs.back().name;
  talk.inventory_done = listing.complete;
  page.set_last(listing.complete);
  return page;
}

std::optional<v1::AttachStoreRequest> MetaLink::NextNews() {
  while (true) {
    std::optional<News> news;
    {
      MutexLock lock(&mutex_);
      news = news_.Pop();
    }
    if (!news) return std::nullopt;
    v1::AttachStoreRequest frame;
    if (const auto* here = std::get_if<SlabHere>(&*news)) {
      const absl::StatusOr<SlabInfo> info = context_.store.Stat(here->name);
      if (info.ok()) {
        *frame.mutable_announced() = EncodeAnnouncement(*info, WallClockSeconds());
      } else if (here->asked && !context_.store.Holds(here->name)) {
        *frame.mutable_removed() =
            EncodeGone({.name = here->name, .cause = SlabGone::Cause::kOther});
      } else {
        continue;  // it went meanwhile; that is news of its own
      }
    } else if (const auto* gone = std::get_if<SlabGone>(&*news)) {
      *frame.mutable_removed() = EncodeGone(*gone);
    } else if (const auto* checked = std::get_if<SlabChecked>(&*news)) {
      *frame.mutable_verified() = EncodeChecked(*checked);
    } else if (const auto* text = std::get_if<SlabText>(&*news)) {
      *frame.mutable_text() = EncodeText(*text);
    }
    return frame;
  }
}

}  // namespace kvmesh::blob

#include "tests/testing/forward_proxy.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/limits.h"
#include "common/rpc/channel.h"

namespace kvmesh::testing {
namespace {

constexpr char kForward[] = "/kvmesh.v1.ShardService/Forward";
constexpr char kWatch[] = "/kvmesh.v1.ShardService/Watch";

grpc::Status Lost() {
  return {grpc::StatusCode::UNAVAILABLE, "the link was lost"};
}

// Shows the message in `buffer` to `hook`, which may alter it.
template <typename Message>
Passage Show(grpc::ByteBuffer* buffer, const std::function<Passage(Message&)>& hook) {
  Message message;
  grpc::ByteBuffer copy(*buffer);  // parsing consumes it
  if (!grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(&copy, &message).ok()) {
    return Passage::kPass;
  }
  const Passage passage = hook(message);
  bool own_buffer = false;
  grpc::ByteBuffer altered;
  if (grpc::GenericSerialize<grpc::ProtoBufferWriter, Message>(message, &altered, &own_buffer)
          .ok()) {
    buffer->Swap(&altered);
  }
  return passage;
}

}  // namespace

ProxyHooks WithoutTokenIds() {
  return {.on_answer = [](v1::ForwardResponse& answer) {
    if (answer.has_output()) answer.mutable_output()->clear_token_id();
    return Passage::kPass;
  }};
}

ProxyHooks WithoutKvCache() {
  return {.on_watch = [](v1::WatchResponse& facts) { facts.set_supports_kv_cache(false); }};
}

// One call that passes: the server's end towards the caller, the client's end towards the shard.
// Both reactors point at it; it lives until both are done.
class ForwardProxy::Relay : public std::enable_shared_from_this<ForwardProxy::Relay> {
 public:
  Relay(ForwardProxy& proxy, grpc::GenericCallbackServerContext* context)
      : proxy_(proxy), method_(context->method()), up_(*this), down_(*this) {
    down_context_.set_deadline(context->deadline());
    for (const auto& [key, value] : context->client_metadata()) {
      const std::string name(key.data(), key.size());
      if (name == "traceparent") {
        down_context_.AddMetadata(name, std::string(value.data(), value.size()));
      }
    }
  }

  grpc::ServerGenericBidiReactor* up() { return &up_; }
  bool is_watch() const { return method_ == kWatch; }

  void Start() {
    up_self_ = down_self_ = shared_from_this();
    proxy_.stub_.PrepareBidiStreamingCall(&down_context_, method_, {}, &down_);
    down_.StartRead(&down_buffer_);
    down_.StartCall();
    up_.StartRead(&up_buffer_);
  }

  void Cut(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      up_queue_.clear();
      down_queue_.clear();
      held_up_ = held_down_ = false;
      if (!end_.has_value()) end_ = status;
    }
    down_context_.TryCancel();
    Pump();
  }

  void Release() {
    {
      MutexLock lock(&mutex_);
      held_up_ = held_down_ = false;
      released_ = true;
    }
    Pump();
  }

 private:
  class Up final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Up(Relay& relay) : relay_(relay) {}
    void OnReadDone(bool ok) override { relay_.OnFrame(ok); }
    void OnWriteDone(bool ok) override { relay_.OnUpWritten(ok); }
    void OnCancel() override { relay_.down_context_.TryCancel(); }
    void OnDone() override {
      relay_.proxy_.Forget(&relay_);
      relay_.up_self_.reset();
    }

   private:
    Relay& relay_;
  };

  class Down final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Down(Relay& relay) : relay_(relay) {}
    void OnReadDone(bool ok) override { relay_.OnAnswer(ok); }
    void OnWriteDone(bool ok) override { relay_.OnDownWritten(ok); }
    void OnDone(const grpc::Status& status) override { relay_.OnDownDone(status); }

   private:
    Relay& relay_;
  };

  void OnFrame(bool ok) {
    Passage passage = Passage::kPass;
    if (ok && method_ == kForward && proxy_.hooks_.on_frame) {
      passage = Show(&up_buffer_, proxy_.hooks_.on_frame);
    }
    if (passage == Passage::kCut) return Cut(Lost());
    {
      MutexLock lock(&mutex_);
      if (!ok) {
        half_close_ = true;
      } else if (passage != Passage::kDrop) {
        if (passage == Passage::kHold && !released_) held_down_ = true;
        down_queue_.emplace_back();
        down_queue_.back().Swap(&up_buffer_);
      }
    }
    Pump();
    if (ok) up_.StartRead(&up_buffer_);
  }

  void OnAnswer(bool ok) {
    if (!ok) return;  // OnDownDone follows
    Passage passage = Passage::kPass;
    if (method_ == kForward && proxy_.hooks_.on_answer) {
      passage = Show(&down_buffer_, proxy_.hooks_.on_answer);
    } else if (method_ == kWatch && proxy_.hooks_.on_watch) {
      passage = Show<v1::WatchResponse>(&down_buffer_, [this](v1::WatchResponse& facts) {
        proxy_.hooks_.on_watch(facts);
        return Passage::kPass;
      });
    }
    if (passage == Passage::kCut) return Cut(Lost());
    if (passage != Passage::kDrop) {
      MutexLock lock(&mutex_);
      if (passage == Passage::kHold && !released_) held_up_ = true;
      up_queue_.emplace_back();
      up_queue_.back().Swap(&down_buffer_);
    }
    Pump();
    down_.StartRead(&down_buffer_);
  }

  void OnUpWritten(bool ok) {
    {
      MutexLock lock(&mutex_);
      up_writing_ = false;
    }
    if (!ok) down_context_.TryCancel();
    Pump();
  }

  void OnDownWritten(bool ok) {
    {
      MutexLock lock(&mutex_);
      down_writing_ = false;
      if (!ok) down_queue_.clear();
    }
    Pump();
  }

  void OnDownDone(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      down_done_ = true;
      if (!end_.has_value()) end_ = status;
    }
    Pump();
    down_self_.reset();
  }

  // Starts what can be started: one write each way, then the ends.
  void Pump() {
    const std::shared_ptr<Relay> self = shared_from_this();
    bool write_up = false, write_down = false, half_close = false, finish = false;
    {
      MutexLock lock(&mutex_);
      if (!finished_ && !up_writing_ && !held_up_) {
        if (!up_queue_.empty()) {
          up_out_.Swap(&up_queue_.front());
          up_queue_.pop_front();
          write_up = up_writing_ = true;
        } else if (end_.has_value()) {
          finish = finished_ = true;
        }
      }
      if (!down_done_ && !down_writing_ && !held_down_) {
        if (!down_queue_.empty()) {
          down_out_.Swap(&down_queue_.front());
          down_queue_.pop_front();
          write_down = down_writing_ = true;
        } else if (half_close_ && !half_closed_) {
          half_close = half_closed_ = true;
        }
      }
    }
    if (write_up) up_.StartWrite(&up_out_);
    if (write_down) down_.StartWrite(&down_out_);
    if (half_close) down_.StartWritesDone();
    if (finish) up_.Finish(*end_);
  }

  ForwardProxy& proxy_;
  const std::string method_;
  grpc::ClientContext down_context_;
  Up up_;
  Down down_;
  // Reactors are used by gRPC until their OnDone.
  std::shared_ptr<Relay> up_self_, down_self_;
  grpc::ByteBuffer up_buffer_, down_buffer_, up_out_, down_out_;

  Mutex mutex_;
  std::deque<grpc::ByteBuffer> up_queue_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> down_queue_ ABSL_GUARDED_BY(mutex_);
  bool up_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool down_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_down_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_close_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool down_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_;  // set once, read after
};

ForwardProxy::ForwardProxy(const std::string& target, ProxyHooks hooks)
    : hooks_(std::move(hooks)), stub_(rpc::MakeChannel(target)) {}

absl::StatusOr<std::unique_ptr<ForwardProxy>> ForwardProxy::Start(const std::string& listen,
                                                                  const std::string& target,
                                                                  ProxyHooks hooks) {
  std::unique_ptr<ForwardProxy> proxy(new ForwardProxy(target, std::move(hooks)));
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(limits::kMessageBytesMax);
  builder.SetMaxSendMessageSize(limits::kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &proxy->port_);
  builder.RegisterCallbackGenericService(proxy.get());
  proxy->server_ = builder.BuildAndStart();
  if (proxy->server_ == nullptr || proxy->port_ == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen));
  }
  return proxy;
}

ForwardProxy::~ForwardProxy() {
  if (server_ == nullptr) return;
  SetDown(true);
  CutStreams(/*also_watch=*/true);
  server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
}

std::string ForwardProxy::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void ForwardProxy::Release() {
  for (const std::shared_ptr<Relay>& relay : Relays()) relay->Release();
}

void ForwardProxy::CutStreams(bool also_watch) {
  for (const std::shared_ptr<Relay>& relay : Relays()) {
    if (also_watch || !relay->is_watch()) relay->Cut(Lost());
  }
}

void ForwardProxy::SetDown(bool down) {
  MutexLock lock(&mutex_);
  down_ = down;
}

std::set<std::shared_ptr<ForwardProxy::Relay>> ForwardProxy::Relays() {
  MutexLock lock(&mutex_);
  return relays_;
}

void ForwardProxy::Forget(Relay* relay) {
  MutexLock lock(&mutex_);
  relays_.erase(relay->shared_from_this());
}

grpc::ServerGenericBidiReactor* ForwardProxy::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  class Refusal final : public grpc::ServerGenericBidiReactor {
   public:
    Refusal() { Finish(Lost()); }
    void OnDone() override { delete this; }
  };
  auto relay = std::make_shared<Relay>(*this, context);
  {
    MutexLock lock(&mutex_);
    if (down_) return new Refusal;
    relays_.insert(relay);
  }
  relay->Start();
  return relay->up();
}

}  // namespace kvmesh::testing

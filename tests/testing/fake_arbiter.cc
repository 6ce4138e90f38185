#include "tests/testing/fake_arbiter.h"

#include <chrono>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh::testing {
namespace {

constexpr std::chrono::seconds kWaitMax{30};

}  // namespace

// Its fields are guarded by the arbiter's mutex; deletes itself.
class FakeArbiter::Stream final
    : public grpc::ServerBidiReactor<v1::AttachStoreRequest, v1::AttachStoreResponse> {
 public:
  explicit Stream(FakeArbiter& arbiter) : arbiter_(arbiter) {
    {
      MutexLock lock(&arbiter_.mutex_);
      arbiter_.stream_ = this;
      arbiter_.frames_.clear();
      ++arbiter_.streams_;
      arbiter_.changed_.NotifyAll();
    }
    StartRead(&incoming_);
  }

  void Queue(Command command) {
    {
      MutexLock lock(&arbiter_.mutex_);
      if (finished_) return;
      queue_.push_back(std::move(command));
      if (writing_) return;
      writing_ = true;
    }
    StartWrite(&queue_.front());
  }
  void FinishOnce(const grpc::Status& status) {
    {
      MutexLock lock(&arbiter_.mutex_);
      if (std::exchange(finished_, true)) return;
    }
    Finish(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return FinishOnce(grpc::Status::OK);
    std::optional<std::pair<uint64_t, std::string>> welcome;
    bool reads = true;
    {
      MutexLock lock(&arbiter_.mutex_);
      if (incoming_.has_hello()) welcome = arbiter_.welcome_;
      reads = arbiter_.reads_;
      if (arbiter_.stream_ == this) arbiter_.frames_.push_back(incoming_);
      arbiter_.changed_.NotifyAll();
    }
    if (welcome) Queue(MakeWelcome(welcome->first, welcome->second));
    if (reads) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    bool more = false;
    {
      MutexLock lock(&arbiter_.mutex_);
      queue_.pop_front();
      more = writing_ = ok && !queue_.empty() && !finished_;
    }
    if (more) StartWrite(&queue_.front());
  }
  void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }
  void OnDone() override {
    {
      MutexLock lock(&arbiter_.mutex_);
      if (arbiter_.stream_ == this) arbiter_.stream_ = nullptr;
      arbiter_.changed_.NotifyAll();
    }
    delete this;
  }

  static Command MakeWelcome(uint64_t number, const std::string& id) {
    Command command;
    command.mutable_welcome()->mutable_incarnation()->set_number(number);
    command.mutable_welcome()->mutable_incarnation()->set_id(id);
    return command;
  }

 private:
  FakeArbiter& arbiter_;
  Frame incoming_;
  std::deque<Command> queue_;
  bool writing_ = false;
  bool finished_ = false;
};

class FakeArbiter::Service final
    : public v1::MetaService::WithCallbackMethod_AttachStore<v1::MetaService::Service> {
 public:
  explicit Service(FakeArbiter& arbiter) : arbiter_(arbiter) {}
  grpc::ServerBidiReactor<v1::AttachStoreRequest, v1::AttachStoreResponse>* AttachStore(
      grpc::CallbackServerContext*) override {
    return new Stream(arbiter_);
  }

 private:
  FakeArbiter& arbiter_;
};

FakeArbiter::FakeArbiter(int port)
    : welcome_(std::pair(1, std::string(16, 'a'))), service_(std::make_unique<Service>(*this)) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(32 << 20);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                           &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
}

FakeArbiter::~FakeArbiter() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

std::string FakeArbiter::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void FakeArbiter::WelcomeAs(std::optional<std::pair<uint64_t, std::string>> incarnation) {
  MutexLock lock(&mutex_);
  welcome_ = std::move(incarnation);
}

void FakeArbiter::StopReading() {
  MutexLock lock(&mutex_);
  reads_ = false;
}

void FakeArbiter::Send(Command command) {
  Stream* stream = nullptr;
  {
    MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->Queue(std::move(command));
}

void FakeArbiter::Welcome(uint64_t number, const std::string& id) {
  Send(Stream::MakeWelcome(number, id));
}

void FakeArbiter::End(const grpc::Status& status) {
  Stream* stream = nullptr;
  {
    MutexLock lock(&mutex_);
    stream = stream_;
  }
  if (stream != nullptr) stream->FinishOnce(status);
}

int FakeArbiter::streams() const {
  MutexLock lock(&mutex_);
  return streams_;
}

std::vector<FakeArbiter::Frame> FakeArbiter::Frames() const {
  MutexLock lock(&mutex_);
  return frames_;
}

bool FakeArbiter::WaitUntil(const std::function<bool()>& condition) const {
  const auto deadline = std::chrono::steady_clock::now() + kWaitMax;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, absl::Milliseconds(20));
  }
  return condition();
}

bool FakeArbiter::WaitForStreams(int count) const {
  return WaitUntil([&] { return streams() >= count; });
}

std::optional<FakeArbiter::Frame> FakeArbiter::WaitFor(
    const std::function<bool(const Frame&)>& holds) const {
  std::optional<Frame> found;
  WaitUntil([&] {
    for (const Frame& frame : Frames()) {
      if (!found && holds(frame)) found = frame;
    }
    return found.has_value();
  });
  return found;
}

bool FakeArbiter::WaitForInventory() const {
  return WaitFor([](const Frame& frame) { return frame.inventory().last(); }).has_value();
}

std::vector<v1::SlabAnnouncement> FakeArbiter::Inventory() const {
  std::vector<v1::SlabAnnouncement> slabs;
  for (const Frame& frame : Frames()) {
    slabs.insert(slabs.end(), frame.inventory().slabs().begin(), frame.inventory().slabs().end());
  }
  return slabs;
}

bool FakeArbiter::WaitForEnd() const {
  return WaitUntil([&] {
    MutexLock lock(&mutex_);
    return stream_ == nullptr;
  });
}

}  // namespace kvmesh::testing

// gRPC 1.51 runs callbacks on a queue that all of a process share, made with its first user and
// torn down with its last. Making it again while the old one is being torn down aborts now and then
// (a double free in grpc_cq_internal_unref). Services live as long as their process and never get
// there; a test that starts and stops servers does, so it keeps one user to its end.
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "absl/synchronization/notification.h"
#include "common/rpc/channel.h"

namespace kvmesh::testing {
namespace {

class KeptCallbackQueue : public ::testing::Environment {
 public:
  // A channel takes the queue with its first call; that nobody answers the call does not matter.
  void SetUp() override {
    static std::shared_ptr<grpc::Channel>* const channel =
        new std::shared_ptr<grpc::Channel>(rpc::MakeChannel("127.0.0.1:1"));
    grpc::GenericStub stub(*channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Slice empty;
    grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    absl::Notification done;
    grpc::Status status;
    stub.UnaryCall(&context, "/kvmesh.testing.Nobody/Answers", {}, &request, &response,
                   [&](grpc::Status ended) {
                     status = std::move(ended);
                     done.Notify();
                   });
    done.WaitForNotification();
    EXPECT_FALSE(status.ok());
  }
};

::testing::Environment* const kKept = ::testing::AddGlobalTestEnvironment(new KeptCallbackQueue);

}  // namespace
}  // namespace kvmesh::testing

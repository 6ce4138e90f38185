#include "tests/mesh/mesh_fixture.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/sha256.h"
#include "common/rpc/channel.h"
#include "common/rpc/status_bridge.h"
#include "tests/mesh/toy_tokenizer.h"

namespace kvmesh::testing {
namespace {

constexpr uint32_t kLayers = 6;
constexpr absl::Duration kPatience = absl::Seconds(20);

model::ModelDigests ToyDigests(LayerRange layers) {
  model::ModelDigests digests{
      .range = layers, .config = Sha256Of("toy config"), .tokenizer = Sha256Of("toy tokenizer")};
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    digests.layers.push_back(Sha256Of(absl::StrCat("toy layer ", layer)));
  }
  if (layers.begin == 0) digests.embedding = Sha256Of("toy embedding");
  if (layers.end == kLayers) digests.head = Sha256Of("toy head");
  return digests;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

void Gate::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
}

void Gate::Open() {
  MutexLock lock(&mutex_);
  closed_ = false;
  opened_.NotifyAll();
}

void Gate::Pass() {
  MutexLock lock(&mutex_);
  ++waiting_;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (closed_ && absl::Now() < deadline) opened_.WaitFor(&mutex_, absl::Milliseconds(100));
  --waiting_;
  ++passed_;
}

int Gate::waiting() const {
  MutexLock lock(&mutex_);
  return waiting_;
}

int Gate::passed() const {
  MutexLock lock(&mutex_);
  return passed_;
}

std::vector<uint32_t> Undisturbed(const Request& request) {
  return ToyGenerate(*ToyIds(request.prompt), request.max_tokens, {}, kLayers);
}

std::vector<ShardSetup> TwoShards() {
  return {{.layers = {0, 3}}, {.layers = {3, kLayers}}};
}

MeshShard::MeshShard(const ShardSetup& setup, const Clock& clock) : setup_(setup), clock_(clock) {
  Start(/*fresh_instance=*/false);
  if (server_ == nullptr) return;
  ProxyHooks forwarded{
      .on_frame =
          [this](v1::ForwardRequest& frame) {
            return hooks.on_frame ? hooks.on_frame(frame) : Passage::kPass;
          },
      .on_answer =
          [this](v1::ForwardResponse& answer) {
            return hooks.on_answer ? hooks.on_answer(answer) : Passage::kPass;
          },
      .on_watch =
          [this](v1::WatchResponse& facts) {
            if (hooks.on_watch) hooks.on_watch(facts);
          },
  };
  auto proxy =
      ForwardProxy::Start("127.0.0.1:0", absl::StrCat("127.0.0.1:", port_), std::move(forwarded));
  if (!proxy.ok()) ADD_FAILURE() << proxy.status();
  if (proxy.ok()) proxy_ = *std::move(proxy);
}

MeshShard::~MeshShard() {
  gate.Open();
  proxy_.reset();
}

void MeshShard::Kill() {
  // Nobody hears of what the process still does while it is taken down.
  proxy_->SetDown(true);
  proxy_->CutStreams(/*also_watch=*/true);
  gate.Open();
  server_.reset();
}

void MeshShard::Start(bool fresh_instance) {
  if (fresh_instance) setup_.instance = RandomId<InstanceId>();
  auto engine = std::make_unique<ToyEngine>(
      ToyOptions{.layer_count = kLayers,
                 .layers = setup_.layers,
                 .context_length = setup_.context_length,
                 .on_layer = [this](uint32_t /*layer*/) { gate.Pass(); }});
  shard::ShardServerOptions options{.server = {.listen = absl::StrCat("127.0.0.1:", port_)},
                                    .peers = {"127.0.0.1"},
                                    .instance = setup_.instance,
                                    .caching = setup_.caching,
                                    .sessions_max = setup_.sessions_max,
                                    .bytes_max = setup_.bytes_max};
  auto server =
      shard::ShardServer::Start(options, clock_, std::move(engine),
                                std::make_unique<ToyVocabulary>(), ToyDigests(setup_.layers));
  if (!server.ok()) ADD_FAILURE() << server.status();
  if (!server.ok()) return;
  server_ = *std::move(server);
  port_ = server_->port();
  if (proxy_ != nullptr) proxy_->SetDown(false);
}

std::vector<shard::SessionView> MeshShard::Sessions() {
  if (server_ == nullptr) return {};
  return server_->runtime().ListSessions(std::nullopt, 100);
}

double MeshShard::Counter(const std::string& name, const metrics::Labels& labels) {
  return server_->metrics().Value("kvmesh_shard_" + name, labels);
}

double MeshShard::Misses(const std::string& cause) {
  return Counter("cache_misses_total", {{"cause", cause}});
}

Mesh::Mesh(const std::vector<ShardSetup>& setups) {
  for (const ShardSetup& setup : setups) {
    shards_.push_back(std::make_unique<MeshShard>(setup, shard_clock_));
  }
}

Mesh::~Mesh() {
  for (auto& shard : shards_) shard->gate.Open();
  routers_.clear();
}

void Mesh::AddRouter(router::RouterOptions options) {
  options.server.listen = "127.0.0.1:0";
  for (const auto& shard : shards_) options.discovery.names.push_back(shard->address());
  options.discovery.resolve_interval = absl::Milliseconds(100);
  auto router = router::RouterServer::Start(
      options, ToyRouterModel(kLayers, shards_[0]->setup().context_length), router_clock_);
  ASSERT_TRUE(router.ok()) << router.status();
  routers_.push_back(*std::move(router));
  stubs_.push_back(v1::RouterService::NewStub(
      rpc::MakeChannel(absl::StrCat("127.0.0.1:", routers_.back()->port()))));
  ASSERT_TRUE(Eventually([this] {
    return routers_.back()->discovery().Facts().size() == shards_.size();
  })) << "the router does not see all shards";
}

Answer Mesh::Call(const Request& request, size_t router,
                  const std::shared_ptr<grpc::ClientContext>& context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + request.timeout));
  v1::GenerateRequest wire;
  wire.set_text(request.prompt);
  wire.mutable_options()->set_max_tokens(request.max_tokens);
  wire.mutable_options()->set_cache(request.cache);
  wire.mutable_options()->mutable_sampling()->set_temperature(0);
  Answer answer;
  const auto reader = stubs_[router]->Generate(context.get(), wire);
  v1::GenerateResponse event;
  while (reader->Read(&event)) {
    if (event.has_started()) answer.generation_id = event.started().generation_id();
    if (event.has_finished()) answer.finished = event.finished();
    answer.text += event.delta().text();
    answer.ids.insert(answer.ids.end(), event.delta().token_ids().begin(),
                      event.delta().token_ids().end());
  }
  answer.status = rpc::FromGrpc(reader->Finish());
  return answer;
}

Answer Mesh::Generate(const Request& request, size_t router) {
  return Call(request, router, std::make_shared<grpc::ClientContext>());
}

std::future<Answer> Mesh::Start(const Request& request, size_t router) {
  newest_ = std::make_shared<grpc::ClientContext>();
  return std::async(std::launch::async, [this, request, router, context = newest_] {
    return Call(request, router, context);
  });
}

void Mesh::CancelNewest() {
  newest_->TryCancel();
}

absl::Status Mesh::CancelOnly() {
  grpc::ClientContext list_context;
  v1::ListGenerationsResponse list;
  const grpc::Status listed = stubs_[0]->ListGenerations(&list_context, {}, &list);
  if (!listed.ok()) return rpc::FromGrpc(listed);
  if (list.generations_size() != 1) return absl::NotFoundError("not exactly one generation");
  grpc::ClientContext context;
  v1::CancelGenerationRequest request;
  request.set_generation_id(list.generations(0).generation_id());
  v1::CancelGenerationResponse response;
  return rpc::FromGrpc(stubs_[0]->CancelGeneration(&context, request, &response));
}

double Mesh::RouterCounter(const std::string& name, const metrics::Labels& labels) {
  double sum = 0;
  for (const auto& router : routers_) {
    sum += router->metrics().Value("kvmesh_router_" + name, labels);
  }
  return sum;
}

double Mesh::RouterMisses(const std::string& cause) {
  return RouterCounter("cache_misses_total", {{"cause", cause}});
}

bool Mesh::NothingHeld() {
  return Eventually([this] {
    for (const auto& shard : shards_) {
      if (!shard->Sessions().empty()) return false;
    }
    return true;
  });
}

}  // namespace kvmesh::testing

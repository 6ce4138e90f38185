// Explained lookups: each thing that they name, and what they can not know.
#include "common/base/limits.h"
#include "tests/rpc/meta/meta_fixture.h"

namespace kvmesh::meta {
namespace {

using ::testing::HasSubstr;
using Stub = v1::MetaService::Stub;

class ExplainTest : public MetaRpcTest {
 protected:
  static v1::ExplainLookupRequest RequestOf(const std::string& text,
                                            const slab::KeyNamespace& in = kIndexNamespace) {
    v1::ExplainLookupRequest request;
    *request.mutable_namespace_() = Namespace(in);
    request.set_text(text);
    return request;
  }
  v1::ExplainLookupResponse Explain(const std::string& text,
                                    const slab::KeyNamespace& in = kIndexNamespace) {
    v1::ExplainLookupResponse response;
    const absl::Status status = Do(&Stub::ExplainLookup, RequestOf(text, in), &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
};

TEST_F(ExplainTest, ExplanationsNameTheFirstByteThatDiffers) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text, {2048});
  for (const uint64_t at : {4321U, 300U}) {
    std::string other = text + "tail";
    other[at] = '#';
    const v1::ExplainLookupResponse response = Explain(other);
    EXPECT_EQ(response.lookup().text_bytes(), at > 2048 ? 2048U : 0U);
    EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
    EXPECT_EQ(response.common_bytes(), at);
    EXPECT_EQ(response.common_bytes_max(), at);
    ASSERT_TRUE(response.has_difference());
    EXPECT_EQ(response.difference().offset(), at);
    EXPECT_THAT(response.difference().prompt(), HasSubstr(text.substr(at - 20, 20) + "#"));
    EXPECT_THAT(response.difference().row(), HasSubstr(text.substr(at - 20, 24)));
  }
}

TEST_F(ExplainTest, ExplanationsDoWithoutAStoreThatGivesNoText) {
  Start();
  FakeStore store({.answers_texts = false});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text, {4200});
  const v1::ExplainLookupResponse response = Explain(text.substr(0, 4150) + "#");
  EXPECT_FALSE(response.has_difference());
  EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
  EXPECT_EQ(response.common_bytes(), 4096U);
  EXPECT_EQ(response.common_bytes_max(), 4151U);  // the row's next cut point lies behind the text
}

TEST_F(ExplainTest, ExplanationsNameTheFieldThatDiffersAndWhatWasEvicted) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text);
  slab::KeyNamespace other = kIndexNamespace;
  other.quant = "f16/f16";
  other.ctx_params[5] ^= 1;
  v1::ExplainLookupResponse response = Explain(text, other);
  EXPECT_FALSE(response.lookup().found());
  EXPECT_THAT(response.namespace_fields_that_differ(),
              ::testing::ElementsAre("quant", "ctx_params"));

  v1::EvictRowsRequest evict;
  evict.set_all(true);
  v1::EvictRowsResponse evicted;
  ASSERT_TRUE(Do(&Stub::EvictRows, evict, &evicted).ok());
  EXPECT_EQ(evicted.row_count(), 1U);
  response = Explain(text + "more");
  EXPECT_FALSE(response.lookup().found());
  ASSERT_TRUE(response.has_gone());
  EXPECT_EQ(response.gone().cause(), ToString(GoneCause::kOperator));
  EXPECT_EQ(response.gone().text_bytes(), 5000U);
}

// Two hundred conversations behind one system prompt; the one that shares most is none of the last
// used, and not the first that was stored.
TEST_F(ExplainTest, TheNearestOfManyIsFoundBehindASharedPrefixAndBeforeIt) {
  Start();
  FakeStore store({});
  const std::string system = RowText(1, 2500);
  const std::string nearest = system + RowText(77, 900);
  for (uint64_t row = 0; row < 200; ++row) {
    PutRow(store, row == 60 ? nearest : system + RowText(100 + row, 900), {2048});
  }
  PutRow(store, RowText(9, 4000), {2048});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(nearest, nearest.size()));
  ASSERT_TRUE(WaitForHit(RowText(9, 4000), 4000));
  // The texts part between the cut point that all share and their ends: all must be compared, and
  // not all are.
  v1::ExplainLookupResponse response = Explain(nearest.substr(0, 3300) + "#");
  EXPECT_EQ(response.lookup().text_bytes(), 2048U);
  EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, nearest).ToHex());
  EXPECT_EQ(response.common_bytes(), 3300U);
  // Before the shared cut point one conversation stands for all.
  response = Explain(system.substr(0, 1200) + "#");
  EXPECT_FALSE(response.lookup().found());
  EXPECT_EQ(response.common_bytes(), 1200U);
  EXPECT_EQ(response.common_bytes_max(), 1200U);
  EXPECT_EQ(response.difference().offset(), 1200U);
  response = Explain(RowText(9, 300) + "#");
  EXPECT_EQ(response.nearest().key(), slab::ContentKey(kIndexNamespace, RowText(9, 4000)).ToHex());
  EXPECT_EQ(response.common_bytes(), 300U);
  EXPECT_EQ(response.common_bytes_max(), 300U);
}

TEST_F(ExplainTest, WhatMayShareMoreIsSaidWhereNotAllTextsAreCompared) {
  Start();
  FakeStore store({});
  for (uint64_t row = 0; row < 50; ++row) PutRow(store, RowText(100 + row, 900), {});
  ASSERT_TRUE(store.Attach(channel_).ok());
  ASSERT_TRUE(WaitForHit(RowText(149, 900), 900));
  v1::ExplainLookupResponse response = Explain(RowText(1, 2000));
  EXPECT_LT(response.common_bytes(), 899U);
  EXPECT_EQ(response.common_bytes_max(), 899U);
}

TEST_F(ExplainTest, AnEvictedRowIsNamedByTheCutPointAtWhichItWouldHaveServed) {
  Start();
  FakeStore store({});
  const std::string text = RowText(1, 5000);
  ServeRow(store, text, {2048, 3072});
  v1::EvictRowsRequest evict;
  evict.add_keys(slab::ContentKey(kIndexNamespace, text).ToHex());
  v1::EvictRowsResponse evicted;
  ASSERT_TRUE(Do(&Stub::EvictRows, evict, &evicted).ok());
  v1::ExplainLookupResponse response = Explain(text.substr(0, 4000) + "#");
  ASSERT_TRUE(response.has_gone());
  EXPECT_EQ(response.gone().key(), slab::ContentKey(kIndexNamespace, text).ToHex());
  EXPECT_EQ(response.gone().text_bytes(), 5000U);
  EXPECT_EQ(response.gone().cut_text_bytes(), 3072U);
  EXPECT_EQ(response.gone().cut_token_count(), 768U);
  response = Explain(text.substr(0, 2000));
  EXPECT_FALSE(response.has_gone());
}

TEST_F(ExplainTest, TheFieldIsFoundAmongManyNamespaces) {
  Start();
  FakeStore store({.budget_bytes = 1ULL << 40});
  const std::string text = RowText(1, 3000);
  for (uint32_t tenant = 0; tenant < 300; ++tenant) {
    slab::KeyNamespace other = kIndexNamespace;
    other.ctx_params[0] = static_cast<char>(tenant % 256);
    other.ctx_params[1] = static_cast<char>(1 + tenant / 256);
    // The last one has the text, and another field that differs in a longer row is no better.
    store.Put({.key_namespace = other,
               .text = tenant == 299 ? text : RowText(2, 3000),
               .write_id = RandomId<WriteId>()});
  }
  ASSERT_TRUE(store.Attach(channel_).ok());
  v1::ExplainLookupResponse response;
  ASSERT_TRUE(WaitUntil([&] {
    return Do(&Stub::ExplainLookup, RequestOf(text), &response).ok() &&
           response.namespace_fields_that_differ_size() > 0;
  }));
  EXPECT_THAT(response.namespace_fields_that_differ(), ::testing::ElementsAre("ctx_params"));
}

TEST_F(ExplainTest, ExplanationsRefuseWhatLookupsRefuse) {
  Start();
  v1::ExplainLookupResponse response;
  absl::Status refused =
      Do(&Stub::ExplainLookup, RequestOf(std::string(limits::kTextBytesMax + 1, 'x')), &response);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("text has 8388609 bytes, at most 8388608"));
  refused = Do(&Stub::ExplainLookup, v1::ExplainLookupRequest(), &response);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("namespace.model_fp has 0 bytes"));
  // Refused ones are not under way: they take no place.
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(Do(&Stub::ExplainLookup, v1::ExplainLookupRequest(), &response)));
  }
  EXPECT_TRUE(Do(&Stub::ExplainLookup, RequestOf(""), &response).ok());
}

}  // namespace
}  // namespace kvmesh::meta

#include "services/router/core/tenants.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/error_info.h"
#include "common/base/sha256.h"
#include "services/router/core/tenant_ledger.h"

namespace kvmesh::router {
namespace {

std::string Hash(const std::string& token) {
  return Sha256Of(token).ToHex();
}

std::string TenantJson(const std::string& name, const std::string& token, char salt,
                       const std::string& more = "") {
  return absl::StrCat(R"({"name":")", name, R"(","salt":")", std::string(32, salt),
                      R"(","key_sha256":[")", Hash(token), R"("])", more, "}");
}

std::string File(const std::string& tenants) {
  return absl::StrCat(R"({"tenants":[)", tenants, "]}");
}

std::string Refusal(const std::string& json) {
  const auto table = TenantTable::Parse(json);
  return table.ok() ? "" : std::string(table.status().message());
}

TEST(TenantTable, ATokenIsFoundByItsHashAlone) {
  const auto table = TenantTable::Parse(
      File(TenantJson("a", "alpha", '1',
                      R"(,"operator":true,"limits":{"generations":2,"tokens_per_minute":600,)"
                      R"("kv_bytes":1000,"store_bytes":2000})") +
           "," + TenantJson("b", "beta", '2')));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->tenant_count(), 2);
  const TenantPtr a = table->Find("alpha");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->name, "a");
  EXPECT_EQ(a->salt, std::string(16, '\x11'));
  EXPECT_TRUE(a->is_operator);
  EXPECT_EQ(a->limits.generations, 2);
  EXPECT_EQ(a->limits.tokens_per_minute, 600);
  EXPECT_EQ(a->limits.kv_bytes, 1000);
  EXPECT_EQ(a->limits.store_bytes, 2000);
  EXPECT_EQ(table->Find("beta")->name, "b");
  EXPECT_FALSE(table->Find("beta")->is_operator);
  for (const std::string& nobody : {std::string(), std::string("alph"), Hash("alpha")}) {
    EXPECT_EQ(table->Find(nobody), nullptr);
  }
}

TEST(TenantTable, WhatIsWrongIsNamedByItsPath) {
  EXPECT_EQ(Refusal("{"), "not JSON");
  EXPECT_EQ(Refusal("{}"), "tenants is no array");
  EXPECT_EQ(Refusal(R"({"tenants":[],"tenant":1})"), "the file has an unknown field tenant");
  EXPECT_EQ(Refusal(File("3")), "tenants[0] is not a JSON object");
  EXPECT_EQ(Refusal(File(TenantJson("a b", "t", '1'))),
            "tenants[0].name is not 1 to 64 letters, digits, dots, dashes and underscores");
  EXPECT_EQ(Refusal(File(TenantJson("a", "t", 'x'))),
            "tenants[0].salt is not 32 to 128 hex digits");
  EXPECT_EQ(Refusal(File(TenantJson("a", "t", '1', R"(,"operator":1)"))),
            "tenants[0].operator is neither true nor false");
  EXPECT_EQ(Refusal(File(TenantJson("a", "t", '1', R"(,"limits":{"generation":1})"))),
            "tenants[0].limits has an unknown field generation");
  EXPECT_EQ(Refusal(File(TenantJson("a", "t", '1', R"(,"limits":{"generations":4294967296})"))),
            "tenants[0].limits.generations is not a whole number that fits");
  EXPECT_EQ(Refusal(File(TenantJson("a", "t", '1', R"(,"limits":{"kv_bytes":-1})"))),
            "tenants[0].limits.kv_bytes is not a whole number that fits");
  EXPECT_EQ(Refusal(File(R"({"name":"a","salt":"00000000000000000000000000000000"})")),
            "tenants[0].key_sha256 is no array");
}

TEST(TenantTable, TwoTenantsShareNeitherNameNorSaltNorKey) {
  const std::string a = TenantJson("a", "alpha", '1');
  EXPECT_EQ(Refusal(File(a + "," + TenantJson("a", "beta", '2'))),
            "tenants[1].name is \"a\", as of one before");
  EXPECT_EQ(Refusal(File(a + "," + TenantJson("b", "beta", '1'))),
            "tenants[1].salt is that of a: the two would share their stored state");
  EXPECT_EQ(Refusal(File(a + "," + TenantJson("b", "alpha", '2'))),
            "tenants[1].key_sha256[0] is there twice");
}

// The ledger.

TenantPtr Limited(const TenantLimits& limits, const std::string& name = "a") {
  return std::make_shared<const Tenant>(Tenant{.name = name, .salt = "s", .limits = limits});
}

SessionId Id(uint8_t n) {
  SessionId id;
  id.mutable_data()[0] = n;
  return id;
}

constexpr MonoTime kStart = absl::Seconds(1000);

TEST(TenantLedger, GenerationsAreCountedByTenantAndComeBack) {
  TenantLedger ledger;
  const TenantPtr a = Limited({.generations = 2});
  EXPECT_TRUE(ledger.Enter(a, Id(1), {}, kStart).ok());
  EXPECT_TRUE(ledger.Enter(a, Id(2), {}, kStart).ok());
  const absl::Status refused = ledger.Enter(a, Id(3), {}, kStart);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(ReasonOf(refused), reason::kTenantLimit);
  EXPECT_EQ(refused.message(), "generations of tenant a is 2; 2 in use, 1 more wanted");
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(ledger.Enter(Limited({.generations = 2}, "b"), Id(4), {}, kStart).ok());
  ledger.Leave(Id(1), 0, kStart);
  ledger.Leave(Id(1), 0, kStart);  // once only
  EXPECT_EQ(ledger.UseOf("a").generations, 1);
  EXPECT_TRUE(ledger.Enter(a, Id(3), {}, kStart).ok());
}

TEST(TenantLedger, TokensComeBackWithTimeAndUnusedOnesAtTheEnd) {
  TenantLedger ledger;
  const TenantPtr a = Limited({.tokens_per_minute = 600});
  EXPECT_TRUE(ledger.Enter(a, Id(1), {.tokens = 600}, kStart).ok());
  const absl::Status refused = ledger.Enter(a, Id(2), {.tokens = 100}, kStart);
  EXPECT_EQ(RetryDelayOf(refused), absl::Seconds(10));
  EXPECT_TRUE(ledger.Enter(a, Id(2), {.tokens = 100}, kStart + absl::Seconds(10)).ok());
  EXPECT_FALSE(ledger.Enter(a, Id(3), {.tokens = 1}, kStart + absl::Seconds(10)).ok());
  ledger.Leave(Id(1), 500, kStart + absl::Seconds(10));
  EXPECT_TRUE(ledger.Enter(a, Id(3), {.tokens = 100}, kStart + absl::Seconds(10)).ok());
  // Never more than the bucket holds, however long nobody came.
  EXPECT_TRUE(ledger.Enter(a, Id(4), {.tokens = 600}, kStart + absl::Hours(5)).ok());
  EXPECT_FALSE(ledger.Enter(a, Id(5), {.tokens = 1}, kStart + absl::Hours(5)).ok());
}

TEST(TenantLedger, ANeedAboveALimitIsRefusedForGoodWithBothNumbers) {
  TenantLedger ledger;
  const TenantPtr a = Limited({.tokens_per_minute = 600, .kv_bytes = 1000});
  const absl::Status tokens = ledger.Enter(a, Id(1), {.tokens = 601}, kStart);
  EXPECT_EQ(tokens.message(), "tokens_per_minute of tenant a is 600; 0 in use, 601 more wanted");
  EXPECT_FALSE(RetryDelayOf(tokens).has_value());
  const absl::Status bytes = ledger.Enter(a, Id(1), {.tokens = 1, .kv_bytes = 1001}, kStart);
  EXPECT_EQ(bytes.message(), "kv_bytes of tenant a is 1000; 0 in use, 1001 more wanted");
  EXPECT_FALSE(RetryDelayOf(bytes).has_value());
  EXPECT_EQ(ledger.UseOf("a").generations, 0);
}

TEST(TenantLedger, SessionStateIsHeldUntilTheEnd) {
  TenantLedger ledger;
  const TenantPtr a = Limited({.kv_bytes = 1000});
  EXPECT_TRUE(ledger.Enter(a, Id(1), {.kv_bytes = 600}, kStart).ok());
  EXPECT_TRUE(RetryDelayOf(ledger.Enter(a, Id(2), {.kv_bytes = 401}, kStart)).has_value());
  EXPECT_TRUE(ledger.Enter(a, Id(2), {.kv_bytes = 400}, kStart).ok());
  ledger.Leave(Id(1), 0, kStart);
  EXPECT_EQ(ledger.UseOf("a").kv_bytes, 400);
}

TEST(TenantLedger, ALimitThatChangesTakesEffectAtTheNextEntry) {
  TenantLedger ledger;
  EXPECT_TRUE(ledger.Enter(Limited({.tokens_per_minute = 60}), Id(1), {.tokens = 60}, kStart).ok());
  EXPECT_TRUE(
      ledger.Enter(Limited({.tokens_per_minute = 600}), Id(2), {.tokens = 540}, kStart).ok());
  EXPECT_FALSE(ledger.Enter(Limited({.tokens_per_minute = 60}), Id(3), {.tokens = 1}, kStart).ok());
  EXPECT_TRUE(ledger.Enter(Limited({}), Id(3), {.tokens = 1 << 20}, kStart).ok());
}

}  // namespace
}  // namespace kvmesh::router

#include "services/blob/tiers/store_identity.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "common/base/error_info.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/store_fixture.h"

namespace kvmesh::blob {
namespace {

StoreId Id(char byte) {
  return *StoreId::FromBytes(std::string(16, byte), "id");
}

Incarnation Of(uint64_t number, char id) {
  return {.number = number, .id = *IncarnationId::FromBytes(std::string(16, id), "id")};
}

class StoreIdentityTest : public ::testing::Test {
 protected:
  StoreIdentity Open(char fresh) {
    auto identity = StoreIdentity::Open(files_, folder_.path(), Id(fresh));
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *std::move(identity);
  }
  void Overwrite(const std::string& name, const std::string& content) const {
    std::ofstream(folder_.path() + "/" + name, std::ios::trunc) << content;
  }

  testing::FaultyFileSystem files_;
  const testing::TempFolder folder_;
};

TEST_F(StoreIdentityTest, TheFirstIdStays) {
  EXPECT_EQ(Open('a').id(), Id('a'));
  EXPECT_EQ(Open('b').id(), Id('a'));
  EXPECT_TRUE(Open('b').complaints().empty());
}

TEST_F(StoreIdentityTest, WhomItObeyedStays) {
  {
    StoreIdentity identity = Open('a');
    EXPECT_FALSE(identity.seen().has_value());
    EXPECT_TRUE(identity.Obey(Of(3, 'x')).ok());
    EXPECT_TRUE(identity.Obey(Of(18446744073709551615U, 'y')).ok());
  }
  StoreIdentity identity = Open('a');
  EXPECT_EQ(identity.seen(), Of(18446744073709551615U, 'y'));
  EXPECT_EQ(ReasonOf(identity.Obey(Of(3, 'x'))), "STALE_INCARNATION");
  EXPECT_EQ(identity.seen(), Of(18446744073709551615U, 'y'));
}

TEST_F(StoreIdentityTest, WithoutAFolderOnlyTheProcessRemembers) {
  auto identity = StoreIdentity::Open(files_, "", Id('a'));
  ASSERT_TRUE(identity.ok());
  EXPECT_TRUE(identity->Obey(Of(3, 'x')).ok());
  EXPECT_FALSE(identity->Obey(Of(2, 'x')).ok());
  EXPECT_TRUE(folder_.Files().empty());
}

TEST_F(StoreIdentityTest, FilesThatDoNotSayWhatTheyShouldAreReplacedAndNamed) {
  const std::string hex(32, '0');
  for (const std::string& bad :
       {std::string(), std::string("\n"), hex + "0", hex.substr(1), std::string(1000, '1'),
        std::string("-1 ") + hex, "18446744073709551616 " + hex, "1  " + hex, "1 " + hex + "0"}) {
    Overwrite("store_id", bad);
    Overwrite("incarnation", bad);
    const StoreIdentity identity = Open('c');
    EXPECT_EQ(identity.id(), Id('c')) << bad;
    EXPECT_FALSE(identity.seen().has_value()) << bad;
    EXPECT_EQ(identity.complaints().size(), 2U) << bad;
    EXPECT_EQ(Open('d').id(), Id('c'));
  }
}

TEST_F(StoreIdentityTest, AnyOperationMayFailAndTheOldOrTheNewRemains) {
  StoreIdentity counted = Open('a');
  files_.SetPlan(nullptr);
  ASSERT_TRUE(counted.Obey(Of(1, 'x')).ok());
  const size_t operations = files_.Operations().size();
  ASSERT_GE(operations, 6U);
  for (size_t number = 0; number < operations; ++number) {
    StoreIdentity identity = Open('a');
    const std::optional<Incarnation> before = identity.seen();
    const Incarnation next = Of(10 + number, 'x');
    files_.SetPlan([n = size_t{0}, number](const std::string&, const std::string&) mutable {
      return n++ == number ? EIO : 0;
    });
    EXPECT_FALSE(identity.Obey(next).ok()) << number;
    files_.SetPlan(nullptr);
    EXPECT_EQ(identity.seen(), before) << number;
    const StoreIdentity again = Open('a');
    EXPECT_TRUE(again.seen() == before || again.seen() == next) << number;
    EXPECT_TRUE(again.complaints().empty());
    EXPECT_TRUE(identity.Obey(next).ok());
  }
}

}  // namespace
}  // namespace kvmesh::blob

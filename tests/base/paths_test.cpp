#include "pentatron/base/paths.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "pentatron/base/free_disk.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;

class NearestExisting : public testing::Test {
 protected:
  TemporaryFolder scratch_;
  fs::path root_ = fs::canonical(scratch_.path());
};

TEST_F(NearestExisting, IsThePathItselfIfItIsThere) {
  EXPECT_EQ(nearest_existing(root_), root_);
  EXPECT_EQ(nearest_existing(root_ / ""), root_);
}

TEST_F(NearestExisting, IsTheFirstOneAboveThatIsThere) {
  EXPECT_EQ(nearest_existing(root_ / "a"), root_);
  EXPECT_EQ(nearest_existing(root_ / "a" / "b" / ""), root_);
  EXPECT_EQ(nearest_existing(root_ / "a" / ".." / "b"), root_);
}

TEST_F(NearestExisting, TakesALinkWithoutTarget) {
  fs::create_symlink(root_ / "nowhere", root_ / "link");
  EXPECT_EQ(nearest_existing(root_ / "link" / "a"), root_ / "link");
}

TEST_F(NearestExisting, OfARelativePathIsAbsolute) {
  EXPECT_EQ(nearest_existing("no_such_folder/a"), fs::current_path());
}

TEST_F(NearestExisting, IsWhereFreeDiskLooks) {
  const auto here = free_disk(root_), below = free_disk(root_ / "a" / "b" / "");
  ASSERT_TRUE(here && below);
  EXPECT_GT(*below, 0);
}

} // namespace
} // namespace pentatron

// What is removed from folders in which a user has files, too.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/own_files.h"
#include "tests/support/files.h"

namespace pentatron {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool is_own(const std::string& path) {
  return path == "a" || path == "below/a";
}

TEST(OwnFiles, GoAndOthersStay) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "folder";
  fs::create_directories(folder / "below");
  fs::create_directories(folder / "empty");
  for (const char* name : {"a", "b", "below/a", "below/b"}) std::ofstream(folder / name) << name;
  fs::create_directory_symlink("/", folder / "link");
  EXPECT_THAT(foreign_files(folder, is_own), ElementsAre("b", "below/b", "empty", "link"));
  EXPECT_FALSE(remove_own_files(folder, is_own));
  EXPECT_THAT(foreign_files(folder, [](const std::string&) { return false; }),
              ElementsAre("b", "below/b", "empty", "link"));
}

TEST(OwnFiles, AreMovedAsTheyLie) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "folder", aside = temporary.path() / "aside";
  fs::create_directories(folder / "below");
  for (const char* name : {"a", "b", "below/a"}) std::ofstream(folder / name) << name;
  EXPECT_FALSE(move_own_files(folder, aside, is_own));
  EXPECT_THAT(foreign_files(folder, [](const std::string&) { return false; }), ElementsAre("b"));
  EXPECT_FALSE(fs::exists(folder / "below"));
  EXPECT_THAT(foreign_files(aside, [](const std::string&) { return false; }),
              ElementsAre("a", "below/a"));
}

TEST(OwnFiles, TakeTheirFoldersWithThem) {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "folder";
  fs::create_directories(folder / "below");
  for (const char* name : {"a", "below/a"}) std::ofstream(folder / name) << name;
  EXPECT_THAT(foreign_files(folder, is_own), IsEmpty());
  EXPECT_FALSE(remove_own_files(folder, is_own));
  EXPECT_FALSE(fs::exists(folder));
}

} // namespace
} // namespace pentatron

// What has changed in the files of a dataset since a run has seen them.
#include "pentatron/data/data_files.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/support/files.h"

namespace pentatron::data {
namespace {

TEST(DataFiles, NamesWhatHasChanged) {
  const TemporaryFolder folder;
  const auto at = [&](const char* name) { return (folder.path() / name).string(); };
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(at(name)) << text;
  };
  const std::vector<std::filesystem::path> paths = {at("a"), at("b"), at("none")};
  const std::string large(1'000'000, 'x');
  write("a", large);
  write("b", "");
  const std::vector<DataFile> before = data_files_from_json(to_json(describe_files(paths)));
  const auto changes = [&] { return describe_changes(before, describe_files(paths)); };
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(changes(), "");
  for (const size_t place : {size_t{0}, large.size() - 1}) {
    std::string other = large;
    other[place] = 'y';
    write("a", other);
    EXPECT_EQ(changes(), at("a") + " has the same size and other content") << place;
  }
  write("a", large + "x");
  EXPECT_EQ(changes(), at("a") + " has 1000001 bytes instead of 1000000");
  write("none", "there");
  std::filesystem::remove(at("b"));
  EXPECT_EQ(changes(), at("a") + " has 1000001 bytes instead of 1000000; 2 more files differ");
  write("a", large);
  std::filesystem::remove(at("none"));
  EXPECT_EQ(changes(), at("b") + " is gone");
  EXPECT_THROW(data_files_from_json("{}"), Error);
}

TEST(DataFiles, AFileGivenTwiceHasNotChanged) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "a";
  std::ofstream(path) << "text";
  const std::vector<DataFile> twice = describe_files({path, path});
  EXPECT_EQ(twice.size(), 1u);
  EXPECT_EQ(describe_changes(twice, describe_files({path, path})), "");
}

} // namespace
} // namespace pentatron::data

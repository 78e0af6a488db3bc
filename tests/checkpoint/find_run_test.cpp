// What all ranks find out together about damaged checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "pentatron/checkpoint/run_checkpoint.h"
#include "tests/checkpoint/sharded/example.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace pentatron::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FindRun : public testing::Test {
 protected:
  fs::path save(int64_t iteration) const { return test::write_example(dir.path(), iteration, 4); }
  static void flip_last(const fs::path& file) {
    std::string bytes = content_of(file);
    bytes.back() ^= 1;
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
  /// What the ranks are told, all alike.
  std::string passed_over(int ranks, const fs::path& damaged) const {
    std::vector<std::string> told(static_cast<size_t>(ranks));
    pentatron::test::run_ranks(ranks, [&](const comm::Group& world) {
      const auto found = find_run(dir.path(), world, false, {{damaged, "a rank found it"}});
      told[static_cast<size_t>(world.rank())] =
          found.value().folder.filename().string() + ": " + found->passed_over;
    });
    for (const std::string& text : told) EXPECT_EQ(text, told[0]);
    return told[0];
  }
  const TemporaryFolder dir;
};

/// Each of several readers sees a part of the damage; all of it decides.
TEST_F(FindRun, ARepairIsSuggestedIfWhatAllRanksFindAllowsIt) {
  save(3);
  const fs::path newest = save(4);
  flip_last(newest / shard_name("model", 1, 4));
  for (const int ranks : {1, 2, 3, 8})
    EXPECT_THAT(passed_over(ranks, newest),
                AllOf(HasSubstr("step_00000003: step_00000004: a rank found it"),
                      HasSubstr("try: pentatron checkpoint repair " + newest.string())));
  flip_last(newest / shard_name("model", 2, 4)); // one parity file does not bring back two
  for (const int ranks : {1, 2, 3, 8})
    EXPECT_THAT(passed_over(ranks, newest), Not(HasSubstr("try:"))) << ranks;
}

TEST_F(FindRun, WhatIsIntactAfterAllIsNotToBeRepaired) {
  save(3);
  EXPECT_THAT(passed_over(2, save(4)), AllOf(HasSubstr("a rank found it"), Not(HasSubstr("try:"))));
}

} // namespace
} // namespace pentatron::checkpoint

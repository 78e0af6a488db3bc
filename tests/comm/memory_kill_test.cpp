// What is said about a rank that ended by SIGKILL.
#include "pentatron/comm/control/memory_kill.h"

#include <csignal>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/comm/control/verdict.h"

namespace pentatron::comm::control {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(MemoryKill, IsLikelyWhenTheKernelCountsOne) {
  EXPECT_THAT(
      memory_kill_text(1, 2),
      AllOf(StartsWith("\n  the kernel likely killed it because memory ran out: "),
            HasSubstr("\n  try: for training, what is not set yet of train.recompute=full ")));
}

TEST(MemoryKill, IsPossibleWhenNothingIsKnown) {
  for (const auto& [before, now] : {std::pair<std::optional<int64_t>, std::optional<int64_t>>{},
                                    {1, std::nullopt},
                                    {std::nullopt, 2}})
    EXPECT_THAT(memory_kill_text(before, now),
                AllOf(HasSubstr("the kernel may have killed it because memory ran out\n"),
                      HasSubstr("\n  try: ")));
}

TEST(MemoryKill, IsNotNamedWhenTheKernelCountsNone) {
  EXPECT_THAT(memory_kill_text(1, 1), IsEmpty());
}

TEST(MemoryKill, IsNotNamedForOtherEnds) {
  const MemoryKills kills;
  EXPECT_THAT(kills.text(SIGSEGV, true), IsEmpty());
  EXPECT_THAT(kills.text(3 << 8, true), IsEmpty()); // exit code 3
  EXPECT_THAT(kills.text(std::nullopt, false), IsEmpty());
}

/// What this machine's kernel counts says nothing of another machine.
TEST(MemoryKill, OfAnotherMachineIsPossible) {
  EXPECT_THAT(MemoryKills().text(SIGKILL, false), HasSubstr("the kernel may have killed it"));
}

TEST(MemoryKill, EndsTheSentenceOfTheVerdict) {
  const Verdict verdict{.rank = 2,
                        .event = "rank 2 " + describe_exit(SIGKILL),
                        .where = " at x",
                        .remedy = memory_kill_text(0, 1)};
  EXPECT_THAT(verdict.sentence(), StartsWith("rank 2 was killed by signal 9 (SIGKILL) at x\n  the "
                                             "kernel likely killed it because memory ran out"));
}

} // namespace
} // namespace pentatron::comm::control

// Real processes that die, stop, stay away or disagree: every run ends in seconds with one sentence
// that names the rank and the operation.
#include "pentatron/base/error.h"
#include "pentatron/comm/supervisor.h"
#include "tests/support/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace pentatron::comm {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

class Faults : public testing::Test {
 protected:
  ~Faults() override {
    // Whatever went wrong, no rank is left.
    for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(alive(rank)) << "rank " << rank;
  }

  int pid(int rank) const {
    int result = 0;
    std::ifstream(folder_ / ("pid." + std::to_string(rank))) >> result;
    return result;
  }
  bool alive(int rank) const { return pid(rank) > 0 && ::kill(pid(rank), 0) == 0; }

  /// The sentence the run ends with, or "exit code 0".
  std::string run(const std::string& fault, int victim, int steps = 20, double timeout_s = 60) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    const auto start = std::chrono::steady_clock::now();
    std::string result;
    try {
      const int code = supervise(
          {.ranks = 4,
           .arguments = {folder_.string(), fault, std::to_string(victim), std::to_string(steps)},
           .program = FAULT_RANK,
           .start = SupervisorOptions::Start::kProcesses,
           .dist = {.timeout_s = timeout_s, .heartbeat_s = 0.1},
           .grace_s = 2});
      result = "exit code " + std::to_string(code);
    } catch (const CommError& error) {
      result = error.what();
    }
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds_, 30); // of a machine under load; 2 s alone
    return result;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
  double seconds_ = 0;
};

TEST_F(Faults, NoneEndsWithTheRanksExitCode) {
  EXPECT_EQ(run("none", 0), "exit code 0");
}

TEST_F(Faults, AKilledRankIsNamedWithItsSignal) {
  EXPECT_THAT(run("sigkill", 2),
              AllOf(MatchesRegex("rank 2 was killed by signal 9 \\(SIGKILL\\) .*"),
                    HasSubstr("all_reduce(sum) #11 of group world of float32 [3, 4]"),
                    HasSubstr("ranks 0, 1, 3 wait")));
  EXPECT_THAT(run("sigsegv", 0), HasSubstr("rank 0 was killed by signal 11 (SIGSEGV)"));
}

TEST_F(Faults, AStoppedRankIsNamedAndKilled) {
  EXPECT_THAT(run("sigstop", 1),
              AllOf(MatchesRegex("rank 1 is stopped by a signal \\(no heartbeat for .* s\\) .*"),
                    HasSubstr("all_reduce(sum) #11 of group world of float32 [3, 4]"),
                    HasSubstr("ranks 0, 2, 3 wait")));
}

TEST_F(Faults, ARankThatDoesNotArriveIsNamed) {
  EXPECT_THAT(run("sleep", 3, 20, /*timeout_s=*/1.5),
              AllOf(HasSubstr("rank 3 has not arrived at all_reduce(sum) #11 of group world of "
                              "float32 [3, 4] for 1."),
                    HasSubstr("ranks 0, 1, 2 wait"),
                    HasSubstr("rank 3 last finished all_reduce(sum) #10 of group world")));
}

TEST_F(Faults, ADisagreementIsTold) {
  const std::string sentence = run("mismatch", 1);
  EXPECT_EQ(sentence, "all_reduce #11 of group world differs between ranks: rank 0 calls "
                      "all_reduce(sum) of float32 [3, 4], rank 1 calls all_gather of float32 [12]");
}

TEST_F(Faults, ARankThatExitsOrLeavesIsNamed) {
  EXPECT_THAT(run("exit", 2), HasSubstr("rank 2 ended too early with exit code 3"));
  EXPECT_THAT(run("leave", 0), AllOf(HasSubstr("rank 0 finished while ranks 1, 2, 3 wait in "
                                               "all_reduce(sum) #11 of group world")));
}

TEST_F(Faults, ARanksErrorIsToldOnce) {
  EXPECT_EQ(run("error", 3), "rank 3 of 4: file x.bin is damaged");
}

TEST_F(Faults, ARankThatNeverStartsIsToldBeforeItJoins) {
  try {
    supervise({.ranks = 2,
               .arguments = {"too few"},
               .program = FAULT_RANK,
               .start = SupervisorOptions::Start::kProcesses});
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ended too early with exit code 64"));
  }
}

TEST_F(Faults, AProgramThatIsNotThereIsAConfigError) {
  EXPECT_THROW(supervise({.ranks = 1, .program = "/no/such/program"}), ConfigError);
  EXPECT_THROW(supervise({.ranks = 2,
                          .program = "/no/such/program",
                          .start = SupervisorOptions::Start::kProcesses}),
               ConfigError);
}

TEST_F(Faults, ASignalReachesEveryRank) {
  std::thread sender([this] {
    for (int i = 0; i < 1000 && (pid(0) == 0 || pid(1) == 0 || pid(2) == 0 || pid(3) == 0); ++i)
      std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(300ms);
    ::kill(::getpid(), SIGTERM);
  });
  const auto before = std::signal(SIGTERM, SIG_IGN); // but while supervise() runs
  testing::internal::CaptureStdout();
  EXPECT_EQ(run("none", 0, 100'000), "exit code 7");
  sender.join();
  std::signal(SIGTERM, before);
  const std::string output = testing::internal::GetCapturedStdout();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(output, HasSubstr("rank " + std::to_string(rank) + " was asked to end\n"));
}

} // namespace
} // namespace pentatron::comm

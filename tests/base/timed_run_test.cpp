// Runs that other programs make late are told from others.
#include <csignal>

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "pentatron/base/timed_run.h"

namespace pentatron {
namespace {

/// A process that never leaves the processor that this thread runs on, which is its only one.
class Neighbour {
 public:
  Neighbour() {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    CPU_SET(::sched_getcpu(), &mine);
    ::sched_setaffinity(0, sizeof mine, &mine);
    process_ = ::fork();
    while (process_ == 0) {
    }
  }
  ~Neighbour() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

 private:
  pid_t process_ = -1;
};

long preemptions() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// It gives its processor away by itself; a run without a preemption shows that the wait counts.
TEST(RunTimer, SeesAThreadThatIsWokenLate) {
  bool late = false;
  double seconds = 0, busy_s = 0;
  std::thread([&] { // settings of a thread end with it
    const Neighbour neighbour;
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    RunTimer timer;
    for (int i = 0; i < 200 && !late; ++i) {
      const long before = preemptions();
      const TimedRun run = timer([] { ::usleep(1000); });
      late = run.disturbed && preemptions() == before;
      seconds = run.seconds;
      busy_s = run.busy_s;
    }
  })
      .join();
  EXPECT_TRUE(late);
  EXPECT_GT(seconds, 0.001);
  EXPECT_LT(busy_s, seconds);
}

TEST(RunTimer, CountsTheProcessorTimeOfAllThreads) {
  RunTimer timer;
  timer([] {});
  const TimedRun run = timer([] {
    const auto spin = [] {
      timespec begin{}, now{};
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
      do ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 10000000L);
    };
    std::thread other(spin);
    spin();
    other.join();
  });
  EXPECT_GT(run.busy_s, 0.02);
  EXPECT_GT(run.seconds, 0.01);
  timer([] {}); // the other thread is gone
}

/// The machine may be busy, but not during each of so many short runs.
TEST(RunTimer, LeavesMostRunsUndisturbed) {
  RunTimer timer;
  int clean = 0;
  for (int i = 0; i < 1000; ++i) clean += timer([] {}).disturbed ? 0 : 1;
  EXPECT_GT(clean, 100);
}

} // namespace
} // namespace pentatron

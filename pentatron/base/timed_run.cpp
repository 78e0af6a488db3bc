#include "pentatron/base/timed_run.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pentatron {

namespace {

/// A thread that was woken late by more than this makes a run disturbed. Without other programs the
/// kernel needs a few microseconds.
constexpr double kLate_s = 20e-6, kLateShare = 0.03;
constexpr const char* kThreads = "/proc/self/task";

double read_s(clockid_t clock) {
  timespec time = {};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// How often the kernel has taken a processor from a thread that had not finished.
long preemptions() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

} // namespace

/// For how long the threads were ready and had no processor. All zero where the kernel does not
/// count it.
class RunTimer::Waits {
 public:
  ~Waits() {
    for (const auto& [id, thread] : threads_) ::close(thread.file);
  }
  void begin() {
    find_threads();
    for (auto it = threads_.begin(); it != threads_.end();) {
      it->second.before_s = read(it->second.file);
      if (it->second.before_s >= 0) {
        ++it;
        continue;
      }
      ::close(it->second.file); // the thread has ended
      it = threads_.erase(it);
      links_ = 0;
    }
  }
  /// Of the thread that waited most since begin().
  double longest_s() const {
    double longest = 0;
    for (const auto& [id, thread] : threads_)
      longest = std::max(longest, read(thread.file) - thread.before_s);
    return longest;
  }

 private:
  struct Thread {
    int file = -1;
    double before_s = 0;
  };

  /// Looks again when their number has changed.
  void find_threads() {
    struct stat status = {};
    if (::stat(kThreads, &status) != 0 || status.st_nlink == links_) return;
    links_ = status.st_nlink;
    DIR* const folder = ::opendir(kThreads);
    if (folder == nullptr) return;
    while (const dirent* const entry = ::readdir(folder)) {
      const int id = std::atoi(entry->d_name);
      if (id == 0 || threads_.contains(id)) continue;
      const std::string path = std::string(kThreads) + "/" + entry->d_name + "/schedstat";
      if (const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); file >= 0)
        threads_[id] = {.file = file};
    }
    ::closedir(folder);
  }
  /// Negative for a thread that has ended.
  static double read(int file) {
    std::array<char, 96> text{}; // nanoseconds running, nanoseconds waiting, times
    unsigned long long running = 0, waiting = 0;
    if (::pread(file, text.data(), text.size() - 1, 0) <= 0) return -1;
    return std::sscanf(text.data(), "%llu %llu", &running, &waiting) == 2
               ? 1e-9 * static_cast<double>(waiting)
               : 0;
  }

  std::map<int, Thread> threads_;
  nlink_t links_ = 0;
};

RunTimer::RunTimer() : waits_(std::make_unique<Waits>()) {}
RunTimer::~RunTimer() = default;

TimedRun RunTimer::operator()(const std::function<void()>& run) {
  waits_->begin();
  const long before = preemptions();
  const double busy = read_s(CLOCK_PROCESS_CPUTIME_ID), begin = read_s(CLOCK_MONOTONIC);
  run();
  TimedRun timed;
  timed.seconds = std::max(read_s(CLOCK_MONOTONIC) - begin, 1e-9);
  timed.busy_s = read_s(CLOCK_PROCESS_CPUTIME_ID) - busy;
  timed.disturbed = preemptions() != before ||
                    waits_->longest_s() > std::max(kLate_s, kLateShare * timed.seconds);
  return timed;
}

} // namespace pentatron

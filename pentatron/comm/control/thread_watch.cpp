#include "pentatron/comm/control/thread_watch.h"

#include <chrono>
#include <csignal>
#include <pthread.h>
#include <utility>

namespace pentatron::comm::control {

ThreadWatch::ThreadWatch(Options options, std::vector<std::shared_ptr<OperationLog>> logs)
    : options_(std::move(options)), logs_(std::move(logs)), finished_(logs_.size()) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadWatch::~ThreadWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadWatch::finished(int rank) {
  const std::lock_guard lock(mutex_);
  finished_[rank] = true;
}

void ThreadWatch::failed(const std::string& sentence) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = sentence;
  }
  changed_.notify_all();
}

void ThreadWatch::run() {
  const auto pause = std::chrono::duration<double>(options_.heartbeat_s);
  const auto closing_or_failed = [this] { return closing_ || !failure_.empty(); };
  std::unique_lock lock(mutex_);
  auto last_turn = std::chrono::steady_clock::now();
  while (!changed_.wait_for(lock, pause, closing_or_failed)) {
    const auto now = std::chrono::steady_clock::now();
    const double gap = std::chrono::duration<double>(now - std::exchange(last_turn, now)).count();
    if (gap > options_.heartbeat_s + 2) // the process was stopped, as by Ctrl-Z
      for (const auto& log : logs_) log->excuse(gap - options_.heartbeat_s);
    std::vector<RankView> views(logs_.size());
    for (size_t rank = 0; rank < views.size(); ++rank) views[rank].finished = finished_[rank];
    lock.unlock();
    for (size_t rank = 0; rank < views.size(); ++rank) views[rank].status = logs_[rank]->status();
    const auto finding = diagnose(views, options_.timeout_s);
    lock.lock();
    if (!finding || !failure_.empty()) continue;
    failure_ = finding->sentence;
    lock.unlock();
    if (options_.on_finding) options_.on_finding(*finding);
    lock.lock();
  }
  if (closing_) return;
  const auto grace = std::chrono::duration<double>(options_.grace_s);
  if (changed_.wait_for(lock, grace, [this] { return closing_; })) return;
  const std::string sentence = failure_;
  lock.unlock();
  if (options_.on_stuck) options_.on_stuck(sentence);
}

} // namespace pentatron::comm::control

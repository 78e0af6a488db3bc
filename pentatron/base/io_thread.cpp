#include "pentatron/base/io_thread.h"

#include "pentatron/base/error.h"

namespace pentatron {

IoThreads::IoThreads(size_t threads, size_t queued) : jobs_(queued) {
  try {
    for (size_t i = 0; i < (threads < 1 ? 1 : threads); ++i) {
      threads_.emplace_back([this] { run(); });
    }
  } catch (const std::system_error& e) {
    jobs_.cancel();
    for (std::thread& thread : threads_) thread.join();
    raise<Error>("cannot start a thread for input and output: {}", e.what());
  }
}

IoThreads::~IoThreads() {
  jobs_.cancel();
  for (std::thread& thread : threads_) thread.join();
}

void IoThreads::rethrow(std::unique_lock<std::mutex>& lock) {
  if (!failure_) return;
  const std::exception_ptr failure = std::exchange(failure_, nullptr);
  lock.unlock();
  std::rethrow_exception(failure);
}

void IoThreads::submit(std::function<void()> job) {
  {
    std::unique_lock lock(mutex_);
    rethrow(lock);
    ++unfinished_;
  }
  jobs_.push(std::move(job));
}

void IoThreads::finish() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return unfinished_ == 0; });
  rethrow(lock);
}

void IoThreads::run() {
  while (std::optional<std::function<void()>> job = jobs_.pop()) {
    std::exception_ptr failure;
    try {
      (*job)();
    } catch (...) {
      failure = std::current_exception();
    }
    job.reset(); // what the job holds is released before anybody is told that it is done
    const std::lock_guard lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    if (--unfinished_ == 0) idle_.notify_all();
  }
}

} // namespace pentatron

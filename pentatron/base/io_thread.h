/// Threads for input and output only: a bounded queue, and workers that run jobs. Computing belongs
/// to OpenMP.
///
/// Waits block, never spin. Failures are passed on: pop() and finish() throw what the producer or a
/// job threw. Destruction stops cleanly, with or without work left.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace pentatron {

/// A queue of at most `capacity` items between threads.
template <class T> class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity < 1 ? 1 : capacity) {}

  /// Waits for room. False if the queue was closed: the item is dropped and the producer should
  /// stop.
  bool push(T item) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
    if (closed_) return false;
    items_.push_back(std::move(item));
    lock.unlock();
    filled_.notify_one();
    return true;
  }

  /// Waits for an item. Nothing if the queue is closed and empty; throws the failure if it was
  /// closed by one.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return closed_ || !items_.empty(); });
    if (items_.empty()) {
      if (failure_) std::rethrow_exception(failure_);
      return std::nullopt;
    }
    std::optional<T> item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    room_.notify_one();
    return item;
  }

  /// No more items; those in the queue can still be taken. `failure`, if given, is what pop()
  /// throws after them.
  void close(std::exception_ptr failure = nullptr) {
    {
      const std::lock_guard lock(mutex_);
      if (!closed_) failure_ = std::move(failure);
      closed_ = true;
    }
    filled_.notify_all();
    room_.notify_all();
  }

  /// Closes and drops what is inside.
  void cancel() {
    std::deque<T> dropped; // destroyed without the lock
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(items_);
    }
    filled_.notify_all();
    room_.notify_all();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable filled_;
  std::deque<T> items_;
  bool closed_ = false;
  std::exception_ptr failure_;
};

/// Workers that run jobs in the order of submission (with one worker: one after another).
class IoThreads {
 public:
  explicit IoThreads(size_t threads = 1, size_t queued = 16);
  /// Drops jobs that have not begun, waits for those that have.
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  /// Waits while the queue is full. Throws what an earlier job threw, once; jobs after a failed one
  /// still run.
  void submit(std::function<void()> job);
  /// Waits until every job has run. Throws what the first failed job threw, once.
  void finish();

 private:
  void run();
  void rethrow(std::unique_lock<std::mutex>& lock);

  BoundedQueue<std::function<void()>> jobs_;
  std::mutex mutex_;
  std::condition_variable idle_;
  size_t unfinished_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

} // namespace pentatron

/// Blocking channels between threads that are ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline::execution {

using Value = uint64_t;

/// Thrown out of a wait that can never end.
struct AllWait {};

/// Channels between ranks; notices when every thread that has not ended waits.
class World {
 public:
  explicit World(int ranks) : running_(ranks) {}

  void send(int from, int to, Value value) {
    publish([&] { queues_[{from, to}].push_back(value); });
  }
  Value take(int from, int to, size_t place) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return queues_[{from, to}].size() > place; });
    return queues_[{from, to}][place];
  }
  size_t sent(int from, int to) { return queues_[{from, to}].size(); }

  using Key = std::tuple<Payload, int, int>; // of a schedule that is not lowered
  void put(Key key, Value value) {
    publish([&] { mail_[key] = value; });
  }
  Value get(Key key) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return mail_.contains(key); });
    return mail_[key];
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    --running_;
    if (running_ == 0 && waiting_ > 0) all_wait();
  }

 private:
  template <class F> void publish(F change) {
    const std::lock_guard lock(mutex_);
    change();
    ++epoch_;
    running_ += std::exchange(waiting_, 0); // all look again
    changed_.notify_all();
  }
  template <class F> void wait(std::unique_lock<std::mutex>& lock, F ready) {
    while (!ready()) {
      --running_;
      ++waiting_;
      if (running_ == 0) all_wait();
      const uint64_t seen = epoch_;
      changed_.wait(lock, [&] { return stuck_ || epoch_ != seen; });
      if (stuck_) throw AllWait();
    }
  }
  void all_wait() {
    stuck_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int running_;
  int waiting_ = 0;
  uint64_t epoch_ = 0;
  bool stuck_ = false;
  std::map<std::pair<int, int>, std::vector<Value>> queues_;
  std::map<Key, Value> mail_;
};

} // namespace pentatron::pipeline::execution

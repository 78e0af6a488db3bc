#include "pentatron/nn/turns.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <pthread.h>
#include <thread>
#include <utility>

#include "pentatron/base/log.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {

namespace {

/// What a thread of a rank has of its own, taken over by another one of the rank.
class ThreadOfRank {
 public:
  explicit ThreadOfRank(c10::Device device)
      : device_(device), rank_(comm::current_rank()), threads_(at::get_num_threads()),
        category_(memory_category()), log_(log::thread_settings()) {
    if (!device_.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  }

  void run(const std::function<void()>& body) const {
    comm::set_current_rank(rank_);
    log::set_thread_settings(log_);
    if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
    const at::ThreadLocalStateGuard torch(torch_);
    const MemoryScope memory(category_);
    const c10::OptionalStreamGuard stream(stream_);
    body();
  }

 private:
  c10::Device device_;
  int rank_, threads_;
  MemoryCategory category_;
  log::ThreadSettings log_;
  at::ThreadLocalState torch_;
  std::optional<c10::Stream> stream_;
};

/// Ends a pass whose other has failed; autograd wants it to be a std::exception.
struct OtherFailed : std::exception {};

} // namespace

struct Turns::State {
  enum class Turn : uint8_t { kNobody, kFirst, kSecond };
  static Turn other(Turn turn) { return turn == Turn::kFirst ? Turn::kSecond : Turn::kFirst; }

  c10::Device device = c10::kCPU;
  std::mutex mutex;
  std::condition_variable changed;
  Turn turn = Turn::kNobody;
  bool alone = false; ///< one of the two has ended
  std::exception_ptr failure;
  std::function<void()> job; ///< of the first pass's thread
  bool closing = false;
  std::thread thread;

  /// The pass of the calling thread has its turn from here.
  void await(std::unique_lock<std::mutex>& lock, Turn own) {
    changed.wait(lock, [&] { return turn == own; });
    if (failure) throw OtherFailed();
  }
  void give(Turn next) {
    turn = next;
    changed.notify_all();
  }

  /// Runs a pass whose turn it is, and ends its part.
  void run(Turn own, const std::function<void()>& body) {
    std::exception_ptr thrown;
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    if (thrown && !failure) failure = thrown; // else that of the other is why
    give(alone ? Turn::kNobody : other(own));
    alone = true;
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closing || job; });
      if (closing) return;
      const std::function<void()> body = std::exchange(job, {});
      lock.unlock();
      run(Turn::kFirst, body);
      lock.lock();
    }
  }
};

Turns::Turns(c10::Device device) : state_(std::make_unique<State>()) {
  state_->device = device;
}

Turns::~Turns() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

void Turns::run(const std::function<void()>& first, const std::function<void()>& second) {
  State& s = *state_;
  const ThreadOfRank own(s.device);
  if (!s.thread.joinable()) {
    s.thread = std::thread([&s] { s.work(); });
    pthread_setname_np(s.thread.native_handle(), "other pass");
  }
  {
    const std::lock_guard lock(s.mutex);
    s.alone = false;
    s.failure = nullptr;
    s.job = [&] { own.run(first); };
    s.give(State::Turn::kFirst);
  }
  s.run(State::Turn::kSecond, [&] {
    {
      std::unique_lock lock(s.mutex);
      s.await(lock, State::Turn::kSecond);
    }
    second();
  });
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return s.turn == State::Turn::kNobody; });
  if (s.failure) std::rethrow_exception(std::exchange(s.failure, nullptr));
}

void Turns::pass() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.turn == State::Turn::kNobody) return;
  const State::Turn own = s.turn;
  if (!s.alone) s.give(State::other(own));
  s.await(lock, own);
}

} // namespace pentatron::nn

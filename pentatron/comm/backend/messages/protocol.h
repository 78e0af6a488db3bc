/// What a rank does in one operation, step by step: a coroutine that suspends where it waits for
/// messages (Flight in operation.h) or for another protocol.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace pentatron::comm::messages {

class [[nodiscard]] Protocol {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  struct promise_type {
    std::coroutine_handle<> awaited_by;
    std::exception_ptr error;

    /// Resumes the coroutine that awaits this protocol.
    struct Return {
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle ended) const noexcept {
        const std::coroutine_handle<> next = ended.promise().awaited_by;
        return next ? next : std::noop_coroutine();
      }
      void await_resume() const noexcept {}
    };
    Protocol get_return_object() { return Protocol(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    Return final_suspend() const noexcept { return {}; }
    void return_void() const {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Protocol() = default;
  explicit Protocol(Handle handle) : handle_(handle) {}
  Protocol(Protocol&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Protocol& operator=(Protocol&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Protocol() {
    if (handle_) handle_.destroy();
  }

  void start() { handle_.resume(); }
  bool done() const { return handle_.done(); }
  /// Of a protocol that is done: what it threw, or null.
  std::exception_ptr error() const { return handle_.promise().error; }

  // co_await runs it to its end and throws what it threw.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept {
    handle_.promise().awaited_by = awaiting;
    return handle_;
  }
  void await_resume() const {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
  }

 private:
  Handle handle_;
};

} // namespace pentatron::comm::messages

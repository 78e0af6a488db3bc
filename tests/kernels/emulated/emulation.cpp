#undef _FORTIFY_SOURCE // it takes a jump to another stack for an error
#include "tests/kernels/emulated/emulation.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "pentatron/kernels/common/scalar.h"

extern "C" {
// The bounds of the section of __shared__ variables, by the linker.
extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));
}

float __bfloat162float(__nv_bfloat16 x) {
  return pentatron::kernels::to_acc(pentatron::kernels::bf16{x.bits});
}
float __half2float(__half x) {
  return pentatron::kernels::to_acc(pentatron::kernels::fp16{x.bits});
}
uint16_t emulation::bf16_bits(float x) {
  return pentatron::kernels::from_acc<pentatron::kernels::bf16>(x).bits;
}
uint16_t emulation::half_bits(float x) {
  return pentatron::kernels::from_acc<pentatron::kernels::fp16>(x).bits;
}

namespace emulation {

namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr unsigned kWarp = 32;

enum class State : uint8_t { kReady, kBarrier, kWarpCall, kDone };

struct Fiber {
  std::unique_ptr<char, void (*)(char*)> stack{nullptr, [](char* p) { ::munmap(p, kStackBytes); }};
  ucontext_t context{};
  std::jmp_buf jump{};
  bool started = false;
  // Of the thread that it runs.
  State state = State::kDone;
  unsigned number = 0;
  dim3 index;
  uint64_t value = 0; // in, then out
  WarpCall call = WarpCall::kSync;
  unsigned mask = 0;
  int lane = 0;
};

std::vector<std::unique_ptr<Fiber>> g_fibers;
Fiber* g_current = nullptr;
std::jmp_buf g_scheduler;
const std::function<void()>* g_thread = nullptr;
const char* g_kernel = "";
std::string g_error;
std::mt19937_64 g_random{1};

std::string where() {
  char text[200];
  std::snprintf(text, sizeof text, "kernel %s, block (%u, %u), thread (%u, %u)", g_kernel,
                block_index.x, block_index.y, thread_index.x, thread_index.y);
  return text;
}

void to_scheduler() {
  if (_setjmp(g_current->jump) == 0) _longjmp(g_scheduler, 1);
}

void fiber_main() {
  while (true) {
    (*g_thread)();
    g_current->state = State::kDone;
    to_scheduler();
  }
}

/// Runs a fiber until it waits or has ended.
void resume(Fiber& fiber) {
  g_current = &fiber;
  thread_index = fiber.index;
  if (_setjmp(g_scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.jump, 1);
  fiber.started = true;
  ::setcontext(&fiber.context);
}

void prepare(Fiber& fiber) {
  if (!fiber.stack) {
    void* const stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw Error("there is no memory for another thread");
    fiber.stack.reset(static_cast<char*>(stack));
  }
  ::getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  ::makecontext(&fiber.context, fiber_main, 0);
  fiber.started = false;
}

std::string lane_text(unsigned lane) {
  return "lane " + std::to_string(lane);
}

/// The threads of one block.
class Block {
 public:
  explicit Block(unsigned threads) : threads_(threads) {}

  void run() {
    std::fill(__start_cuda_shared, __stop_cuda_shared, static_cast<char>(0xFF));
    for (unsigned i = 0; i < threads_; ++i) wake(i);
    draw_order();
    while (true) {
      while (!ready_.empty()) {
        const unsigned i = next();
        resume(fiber(i));
        if (!g_error.empty()) throw Error(g_error);
        if (fiber(i).state == State::kWarpCall) complete(i / kWarp * kWarp, fiber(i));
      }
      if (!release_barrier()) return;
      if (observer != nullptr) observer->barrier();
      draw_order();
    }
  }

 private:
  static Fiber& fiber(unsigned i) { return *g_fibers[i]; }

  /// Up to the next barrier, either whole warps run one after the other, in an order that is drawn,
  /// or any thread that can run is drawn each time.
  void draw_order() {
    warps_first_ = g_random() % 2 == 0;
    for (uint64_t& rank : warp_ranks_) rank = g_random();
  }

  /// Takes a thread that can run.
  unsigned next() {
    size_t chosen = g_random() % ready_.size();
    if (warps_first_) {
      for (size_t i = 0; i < ready_.size(); ++i)
        if (rank_of(ready_[i]) < rank_of(ready_[chosen])) chosen = i;
    }
    const unsigned thread = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    return thread;
  }
  uint64_t rank_of(unsigned thread) const { return warp_ranks_[thread / kWarp]; }

  [[noreturn]] void fail_at(unsigned i, const std::string& what) {
    thread_index = fiber(i).index;
    throw Error(what + " (" + where() + ")");
  }

  /// False if all threads have ended.
  bool release_barrier() {
    unsigned done = 0;
    uint64_t any = 0;
    for (unsigned i = 0; i < threads_; ++i) {
      const Fiber& one = fiber(i);
      if (one.state == State::kWarpCall)
        fail_at(i, "a lane of the mask never comes to the call that this thread waits in");
      done += one.state == State::kDone;
      if (one.state == State::kBarrier) any |= one.value;
    }
    if (done == threads_) return false;
    for (unsigned i = 0; i < threads_; ++i) {
      if (fiber(i).state != State::kBarrier) continue;
      fiber(i).value = any;
      wake(i);
    }
    return true;
  }

  void wake(unsigned i) {
    fiber(i).state = State::kReady;
    ready_.push_back(i);
  }

  /// Completes a call of the warp from thread `first` on if all lanes of its mask have come.
  void complete(unsigned first, const Fiber& caller) {
    const unsigned mask = caller.mask;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      const unsigned i = first + lane;
      if (i >= threads_ || fiber(i).state == State::kDone)
        fail_at(caller.number, lane_text(lane) + " of the mask has ended or does not exist");
      const Fiber& one = fiber(i);
      if (one.state != State::kWarpCall) return;
      if (one.mask != mask || one.call != caller.call) {
        // It may come to this call later, unless it waits for this lane.
        if (one.mask >> (caller.number - first) & 1)
          fail_at(i, "lanes of a warp make different calls, or calls with different masks");
        return;
      }
    }
    exchange(first, mask);
  }

  void exchange(unsigned first, unsigned mask) {
    std::array<uint64_t, kWarp> values{};
    uint64_t ballot = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      values[lane] = fiber(first + lane).value;
      if (values[lane] != 0) ballot |= uint64_t{1} << lane;
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Fiber& one = fiber(first + lane);
      if (one.call == WarpCall::kBallot) {
        one.value = ballot;
      } else if (one.call != WarpCall::kSync) {
        const unsigned source = source_of(one, lane);
        if ((mask >> source & 1) == 0)
          fail_at(one.number,
                  "a shuffle reads " + lane_text(source) + ", which is not in the mask");
        one.value = values[source];
      }
      wake(first + lane);
    }
  }

  static unsigned source_of(const Fiber& one, unsigned lane) {
    const auto distance = static_cast<unsigned>(one.lane);
    if (one.call == WarpCall::kXor) return (lane ^ distance) % kWarp;
    if (one.call == WarpCall::kIndex) return distance % kWarp;
    return lane + distance < kWarp ? lane + distance : lane;
  }

  const unsigned threads_;
  std::vector<unsigned> ready_;
  bool warps_first_ = false;
  std::array<uint64_t, 32> warp_ranks_{};
};

void report_fault(int, siginfo_t* info, void*) {
  const std::string text = "an access outside its buffer, at " +
                           std::to_string(reinterpret_cast<uintptr_t>(info->si_addr)) + " (" +
                           where() + ")\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(1);
}

/// While it lives, a fault is told as one of the kernel.
class Faults {
 public:
  Faults() {
    static char stack[64 << 10];
    stack_t alternative{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
    ::sigaltstack(&alternative, nullptr);
    struct sigaction action {};
    action.sa_sigaction = report_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, &segv_);
    ::sigaction(SIGBUS, &action, &bus_);
  }
  ~Faults() {
    ::sigaction(SIGSEGV, &segv_, nullptr);
    ::sigaction(SIGBUS, &bus_, nullptr);
  }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

 private:
  struct sigaction segv_ {
  }, bus_{};
};

} // namespace

uint64_t block_barrier(int value) {
  g_current->state = State::kBarrier;
  g_current->value = static_cast<uint64_t>(value);
  to_scheduler();
  return g_current->value;
}

uint64_t warp_call(WarpCall call, unsigned mask, uint64_t value, int lane) {
  if ((mask >> (g_current->number % kWarp) & 1) == 0)
    fail(lane_text(g_current->number % kWarp) + " is not in the mask of its own call");
  g_current->state = State::kWarpCall;
  g_current->call = call;
  g_current->mask = mask;
  g_current->value = value;
  g_current->lane = lane;
  to_scheduler();
  return g_current->value;
}

void fail(const std::string& what) {
  g_error = what + " (" + where() + ")";
  _longjmp(g_scheduler, 1);
}

void run(const char* kernel, dim3 blocks, dim3 threads, const std::function<void()>& thread,
         uint64_t key) {
  const unsigned count = threads.x * threads.y * threads.z;
  if (count == 0 || count > 1024 || blocks.x == 0 || blocks.y == 0 || blocks.y > 65535 ||
      blocks.z != 1)
    throw Error(std::string("kernel ") + kernel + " is launched with sizes that CUDA refuses");
  const Faults faults;
  while (g_fibers.size() < count) {
    g_fibers.push_back(std::make_unique<Fiber>());
    prepare(*g_fibers.back());
  }
  for (unsigned i = 0; i < count; ++i) {
    g_fibers[i]->number = i;
    g_fibers[i]->index = dim3(i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y);
  }
  g_kernel = kernel;
  g_thread = &thread;
  g_error.clear();
  block_size = threads;
  grid_size = blocks;
  std::vector<unsigned> order;
  if (observer != nullptr)
    order = observer->launch(kernel, key, blocks, threads);
  else
    for (unsigned i = 0; i < blocks.x * blocks.y; ++i) order.push_back(i);
  std::shuffle(order.begin(), order.end(), g_random);
  try {
    for (const unsigned i : order) {
      block_index = dim3(i % blocks.x, i / blocks.x);
      if (observer != nullptr) observer->block_begins();
      Block(count).run();
    }
  } catch (const Error&) {
    for (auto& fiber : g_fibers) prepare(*fiber); // they stand in the middle of their threads
    throw;
  }
  if (observer != nullptr) observer->launch_ended();
}

void set_seed(uint64_t seed) {
  g_random.seed(seed);
}

} // namespace emulation

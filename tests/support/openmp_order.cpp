// libgomp is not instrumented, so ThreadSanitizer does not see that a parallel region's threads
// begin after what comes before it, and end before what follows. This takes the place of the call
// that compilers make for a region, and says so with atomic variables. Linked into tests of a build
// with -fsanitize=thread only.
#include <atomic>
#include <dlfcn.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  std::atomic<int> begun = 0, ended = 0;
};

void run(void* opaque) {
  auto* const region = static_cast<Region*>(opaque);
  static_cast<void>(region->begun.load(std::memory_order_acquire));
  region->body(region->data);
  region->ended.fetch_add(1, std::memory_order_release);
}

} // namespace

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto parallel = reinterpret_cast<Parallel>(::dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  region.begun.store(1, std::memory_order_release);
  parallel(run, &region, threads, flags);
  static_cast<void>(region.ended.load(std::memory_order_acquire));
}

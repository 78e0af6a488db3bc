// The main function of kernels_gpu_test: from here on all memory is shared with the GPU, if there
// is one. Memory is never given back: a test program is short.
#include "tests/kernels/gpu/shared_memory.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <cuda_runtime_api.h>

#include "pentatron/base/error.h"
#include "tests/kernels/gpu/rates.h"
#include "tests/kernels/guarded_memory.h"
#include "tests/support/exit_status.h"

namespace pentatron::kernels::testing {
namespace {

constexpr size_t kArena = size_t{8} << 30; // addresses; pages come when they are touched
constexpr size_t kAlignment = 64;

std::byte* arena = nullptr;
std::atomic<size_t> used{0};

std::byte* take(size_t bytes, size_t alignment) {
  if (arena == nullptr) return nullptr;
  const size_t room = (bytes + alignment - 1) / alignment * alignment + alignment;
  const size_t begin = used.fetch_add(room);
  if (begin + room > kArena) return nullptr;
  return arena + (begin + alignment - 1) / alignment * alignment;
}

bool in_arena(const void* p) {
  return arena != nullptr && p >= arena && p < arena + kArena;
}

std::byte* pages(size_t bytes) {
  return take(bytes, 4096);
}

} // namespace

bool gpu_answers() {
  static const bool answers = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  }();
  return answers;
}

void wait_for_gpu() {
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess)
    raise<Error>("the GPU failed: {}", cudaGetErrorString(error));
}

/// Memory from the arena, or nullptr before it is there or when it is full.
void* shared(size_t bytes, size_t alignment) {
  return take(bytes, alignment);
}
bool is_shared(const void* p) {
  return in_arena(p);
}

bool open_arena() {
  void* memory = nullptr;
  if (!gpu_answers() || cudaMallocManaged(&memory, kArena, cudaMemAttachGlobal) != cudaSuccess)
    return false;
  arena = static_cast<std::byte*>(memory);
  pages_of_gpu = pages;
  return true;
}

} // namespace pentatron::kernels::testing

namespace memory = pentatron::kernels::testing;

void* operator new(size_t bytes) {
  if (void* const p = memory::shared(bytes, memory::kAlignment)) return p;
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  if (!memory::is_shared(p)) std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  operator delete(p);
}

int main(int argc, char** argv) {
  const bool rates = argc == 2 && std::strcmp(argv[1], "--rates") == 0;
  if (!rates) ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1); // read when CUDA starts
  testing::InitGoogleMock(&argc, argv);
  const bool gpu = memory::open_arena();
  if (rates) return memory::print_rates();
  if (!gpu) {
    std::printf("no GPU answers: the CUDA entries are left out\n");
    if (std::getenv("PENTATRON_NEEDS_GPU") != nullptr) return 1;
  }
  return pentatron::test::run_all_tests();
}

/// Memory between two pages that nobody may touch: reading or writing behind its end is a fault, in
/// any entry of a kernel. What lies before it up to the page is checked when it is freed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include <gtest/gtest.h>
#include <sys/mman.h>

namespace pentatron::kernels::testing {

/// Memory for pages in place of mmap's, if it is set and answers: of a GPU, whose pages cannot be
/// guarded. What lies behind the end is then checked as what lies before the beginning.
inline std::byte* (*pages_of_gpu)(size_t bytes) = nullptr;

class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_(bytes) {
    inner_ = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
    if (pages_of_gpu != nullptr && (pages_ = pages_of_gpu(inner_ + 2 * kPage)) != nullptr) {
      of_gpu_ = true;
      std::fill(pages_, pages_ + inner_ + 2 * kPage, kCanary);
      return;
    }
    void* const pages = ::mmap(nullptr, inner_ + 2 * kPage, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    pages_ = static_cast<std::byte*>(pages);
    if (::mprotect(pages_ + kPage, inner_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::fill(pages_ + kPage, data(), kCanary);
  }
  GuardedMemory(const GuardedMemory& other) : GuardedMemory(other.bytes_) {
    std::memcpy(data(), other.data(), bytes_);
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : bytes_(other.bytes_), inner_(other.inner_), pages_(other.pages_), of_gpu_(other.of_gpu_) {
    other.pages_ = nullptr;
  }
  GuardedMemory& operator=(GuardedMemory other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(inner_, other.inner_);
    std::swap(pages_, other.pages_);
    std::swap(of_gpu_, other.of_gpu_);
    return *this;
  }
  ~GuardedMemory() {
    if (pages_ == nullptr) return;
    EXPECT_TRUE(std::all_of(pages_ + kPage, data(), [](std::byte b) { return b == kCanary; }))
        << "memory before a buffer was overwritten";
    if (!of_gpu_) {
      ::munmap(pages_, inner_ + 2 * kPage);
      return;
    }
    EXPECT_TRUE(std::all_of(data() + bytes_, data() + bytes_ + kPage, [](std::byte b) {
      return b == kCanary;
    })) << "memory behind a buffer was overwritten";
  }

  std::byte* data() const { return pages_ + kPage + inner_ - bytes_; }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr std::byte kCanary{0xA5};

  size_t bytes_, inner_ = 0;
  std::byte* pages_ = nullptr;
  bool of_gpu_ = false;
};

} // namespace pentatron::kernels::testing

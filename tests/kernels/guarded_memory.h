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

class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes) : bytes_(bytes) {
    inner_ = std::max<size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
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
      : bytes_(other.bytes_), inner_(other.inner_), pages_(other.pages_) {
    other.pages_ = nullptr;
  }
  GuardedMemory& operator=(GuardedMemory other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(inner_, other.inner_);
    std::swap(pages_, other.pages_);
    return *this;
  }
  ~GuardedMemory() {
    if (pages_ == nullptr) return;
    EXPECT_TRUE(std::all_of(pages_ + kPage, data(), [](std::byte b) { return b == kCanary; }))
        << "memory before a buffer was overwritten";
    ::munmap(pages_, inner_ + 2 * kPage);
  }

  std::byte* data() const { return pages_ + kPage + inner_ - bytes_; }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr std::byte kCanary{0xA5};

  size_t bytes_, inner_ = 0;
  std::byte* pages_ = nullptr;
};

} // namespace pentatron::kernels::testing

/// Scratch memory of the GEMM: buffers kept between calls, each in use by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pentatron::kernels::gemm_detail {

/// A buffer of at least `bytes`, aligned to 64, from the pool; returned to the pool by the
/// destructor. Throws Error if the memory cannot be had.
class PackBuffer {
 public:
  explicit PackBuffer(size_t bytes);
  ~PackBuffer();
  PackBuffer(const PackBuffer&) = delete;
  PackBuffer& operator=(const PackBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

} // namespace pentatron::kernels::gemm_detail

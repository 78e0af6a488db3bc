/// Sums over rows that do not depend on the number of threads: rows are cut into chunks by their
/// count alone, each chunk sums into its own scratch, and the chunks are added in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct RowChunks {
  explicit RowChunks(int64_t rows)
      : size(std::max<int64_t>(8, (rows + 63) / 64)), count((rows + size - 1) / size) {}
  int64_t size;
  int64_t count; ///< at most 64
};

/// One fp32 vector of `cols` for each chunk, all zero at first.
class ColumnSums {
 public:
  static size_t bytes(int64_t rows, int64_t cols) {
    return RowChunks(rows).count * cols * sizeof(float);
  }

  /// Takes its scratch from the front of `workspace` if there is enough, else from the heap.
  ColumnSums(int64_t rows, int64_t cols, std::span<std::byte>& workspace)
      : chunks_(RowChunks(rows).count), cols_(cols) {
    const size_t needed = bytes(rows, cols);
    if (workspace.size() >= needed &&
        reinterpret_cast<uintptr_t>(workspace.data()) % alignof(float) == 0) {
      data_ = reinterpret_cast<float*>(workspace.data());
      workspace = workspace.subspan(needed);
    } else {
      owned_ = std::make_unique_for_overwrite<float[]>(chunks_ * cols);
      data_ = owned_.get();
    }
  }

  /// The chunk's vector, cleared: call once per chunk, by the thread that sums it.
  float* begin_chunk(int64_t chunk) {
    std::fill_n(data_ + chunk * cols_, cols_, 0.0f);
    return data_ + chunk * cols_;
  }

  /// out[c] += sum over the chunks.
  void add_to(float* out) const {
#pragma omp parallel for schedule(static) if (chunks_ * cols_ > 1 << 15)
    for (int64_t c = 0; c < cols_; c += kBlock) {
      const int64_t width = std::min(kBlock, cols_ - c);
      float total[kBlock] = {};
      for (int64_t k = 0; k < chunks_; ++k)
        for (int64_t i = 0; i < width; ++i) total[i] += data_[k * cols_ + c + i];
      for (int64_t i = 0; i < width; ++i) out[c + i] += total[i];
    }
  }

 private:
  static constexpr int64_t kBlock = 256;
  int64_t chunks_;
  int64_t cols_;
  float* data_;
  std::unique_ptr<float[]> owned_;
};

} // namespace pentatron::kernels

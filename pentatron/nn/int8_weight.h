/// Frozen matrices in 8 bits: w[i, j] = codes[i, j] scales[i, j / block], the form of GGUF's Q8_0
/// with bf16 scales. A block's largest element has the code 127 or -127.
///
/// Codes depend on the values alone, also where ranks hold whole blocks of the columns.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

class Int8Weight {
 public:
  static constexpr int64_t kLargestBlock = 32;
  static constexpr double kBytes = 1 + 2.0 / kLargestBlock; ///< of an element
  /// The columns that share a scale: the largest divisor of all columns up to kLargestBlock.
  static int64_t block_of(int64_t all_columns);

  /// Of values [..., columns], which are finite; `block` divides the columns.
  Int8Weight(const at::Tensor& values, int64_t block);

  /// The values that it stands for, in any floating type: [rows, columns] of the rows [first, first
  /// + count), leading dimensions counted as rows.
  at::Tensor rows(int64_t first, int64_t count, at::ScalarType dtype) const;

  int64_t num_rows() const { return codes_.size(0); }
  int64_t bytes() const { return codes_.nbytes() + scales_.nbytes(); }

 private:
  at::Tensor codes_;  ///< [rows, blocks, block]
  at::Tensor scales_; ///< [rows, blocks, 1]
};

} // namespace pentatron::nn

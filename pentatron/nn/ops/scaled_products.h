/// Products of FP8 codes by LibTorch (cuBLASLt on GPUs of compute capability 8.9 and later; with
/// scales of blocks on those of 9.x): codes are multiplied with sums in fp32, and the sums, of
/// blocks the sums over each block, are multiplied by both scales, which never leave the device.
///
/// Sizes: all but the number of tokens are multiples of 16; tokens that a product sums over are
/// filled up with zeros, and where tokens have scales their number is filled up to a multiple of 4.
/// On CPUs, for tests, products with scales of blocks are those of the values in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/nn/fp8_weight.h"
#include "pentatron/nn/low_precision.h"

namespace pentatron::nn {

/// Of sizes that a scaled product sums over.
inline constexpr int64_t kScaledProductSize = 16;

/// The codes of x [rows, cols]: [rows, cols], with scales of blocks [rows filled up, cols], or
/// along rows [cols, rows filled up]. With delayed scales the history's scale is used and it sees
/// x.
QuantizedValues scaled_codes(const at::Tensor& x, Operand operand, const LowPrecision& how,
                             bool along_rows);

/// Raises what the history has seen of the operand, if it wants to.
void see_on_device(const at::Tensor& x, Operand operand, const LowPrecision& how);

/// out [m, n] = a b^T (+ bias [n]), of codes a [m, k] and b [n, k]. `exact`: partial sums are
/// always fp32, as they are with scales of blocks; else the tensor core may keep fewer bits
/// (cuBLASLt's fast accumulation).
void scaled_product_into(const at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b,
                         const at::Tensor& bias, bool exact);
/// grad [m, n] += a b^T, or = where it is empty.
void add_scaled_product(const at::Tensor& grad, const QuantizedValues& a, const QuantizedValues& b,
                        bool empty);

} // namespace pentatron::nn

/// Products of FP8 and FP4 codes by LibTorch (cuBLASLt), with sums in fp32 that are multiplied by
/// the scales of both operands, which never leave the device; of blocks each block's sum is. On
/// GPUs of compute capability 8.9 and later; with the scales of blocks of 128 on those of 9.x, in
/// MXFP8 and NVFP4 on those of 10.0 and later.
///
/// Sizes: all but the number of tokens are multiples of scaled_product_size(); tokens that a
/// product sums over are filled up with zeros, and where tokens have scales of blocks of 128 their
/// number is filled up to a multiple of 4. On CPUs, for tests, products with scales of blocks are
/// those of the values in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/nn/fp8_weight.h"
#include "pentatron/nn/low_precision.h"

namespace pentatron::nn {

/// What the sizes that scaled products of operands in this recipe sum over are multiples of.
int64_t scaled_product_size(kernels::QuantRecipe recipe);

/// The codes of x [rows, cols]: [rows, cols], with the scales of blocks of 128 [rows filled up,
/// cols], or along rows [cols, rows filled up]. With delayed scales the history's scale is used and
/// it sees x. `tokens`: the rows of x that are not there because it was transformed
/// (kernels/quantize/hadamard.h).
QuantizedValues scaled_codes(const at::Tensor& x, Operand operand, const LowPrecision& how,
                             bool along_rows, int64_t tokens);

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

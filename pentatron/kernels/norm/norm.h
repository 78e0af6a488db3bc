/// RMSNorm and LayerNorm over rows, forward and backward, with the residual branch fused.
///
/// Shapes, r = rows, c = cols:
///   x, residual, sum, y, dy, dsum, dx   [r, c], each with its own row layout; rows contiguous
///   weight, bias                        [c] of weight_dtype
///   mean, rstd                          [r] of acc_dtype(dtype)
///   dweight, dbias                      [c] of acc_dtype(dtype), ACCUMULATED (+=)
/// Forward:  s = x + residual (rounded to dtype and stored in `sum`), or x without a residual;
///   RMSNorm    y = w * s * rstd,               rstd = 1 / sqrt(mean(s^2) + eps)
///   LayerNorm  y = w * (s - mean) * rstd + b,  rstd = 1 / sqrt(mean((s - mean)^2) + eps)   (two
///   passes) with w = weight, or weight + 1 if zero_centered. Arithmetic is in the accumulate type
///   and y is rounded once; Hugging Face's Llama rounds s * rstd to bf16 before the multiplication
///   by w, so bf16 results may differ by one rounding.
/// Backward: `x` is the s of the forward; dx = d(norm)/ds + dsum, dweight += .., dbias += ..
///   dx may be the very rows of dy, x or dsum (in place), never a shifted part of them.
/// Deterministic: the result does not depend on the number of threads.
/// Source: Ba et al. 2016 (arXiv:1607.06450); Zhang & Sennrich 2019 (arXiv:1910.07467).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

enum class NormKind : uint8_t { kRmsNorm, kLayerNorm };

/// Where row r begins: (r / group_rows) * group_stride + (r % group_rows) * stride elements. With
/// group_rows = 0, r * stride; with stride = 0 too, rows are packed. Groups are tokens when rows
/// are the heads inside a fused qkv buffer.
struct RowLayout {
  int64_t stride = 0;
  int64_t group_rows = 0;
  int64_t group_stride = 0;

  int64_t offset(int64_t row, int64_t cols) const {
    const int64_t step = stride == 0 ? cols : stride;
    if (group_rows == 0) return row * step;
    return row / group_rows * group_stride + row % group_rows * step;
  }
};

struct NormForward {
  NormKind kind = NormKind::kRmsNorm;
  DType dtype = DType::kFloat32;
  DType weight_dtype = DType::kFloat32; ///< of weight and bias
  int64_t rows = 0;
  int64_t cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr; ///< null: no addition
  void* sum = nullptr;            ///< x + residual; may be x or residual; null without a residual
  const void* weight = nullptr;   ///< null: w = 1
  const void* bias = nullptr;     ///< null: none; LayerNorm only
  void* y = nullptr;              ///< may be x without a residual
  void* mean = nullptr;           ///< LayerNorm only; null: not stored
  void* rstd = nullptr;           ///< null: not stored
  RowLayout x_rows = {}, residual_rows = {}, sum_rows = {}, y_rows = {};
  double eps = 1e-5;
  bool zero_centered = false;
};

struct NormBackward {
  NormKind kind = NormKind::kRmsNorm;
  DType dtype = DType::kFloat32;
  DType weight_dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* dy = nullptr;
  const void* x = nullptr; ///< what the forward normalised (its `sum` if it had a residual)
  const void* weight = nullptr;
  const void* mean = nullptr; ///< LayerNorm only
  const void* rstd = nullptr;
  const void* dsum =
      nullptr; ///< gradient that reaches `sum` by the residual branch, added to dx; null: none
  void* dx = nullptr;      ///< null: not wanted
  void* dweight = nullptr; ///< null: not wanted
  void* dbias = nullptr;   ///< null: not wanted
  RowLayout dy_rows = {}, x_rows = {}, dsum_rows = {}, dx_rows = {};
  bool zero_centered = false;
};

/// Throws ShapeError if sizes are negative or a needed pointer is missing.
void norm_forward(const NormForward& args, const Context& context = {});
void norm_backward(const NormBackward& args, const Context& context = {});

/// Scratch for the partial sums of dweight and dbias. On the CPU a smaller workspace is allowed:
/// the kernel allocates.
size_t workspace_bytes(const NormBackward& args, Device device = Device::kCuda);

std::span<const Entry<NormForward>> norm_forward_entries();
std::span<const Entry<NormBackward>> norm_backward_entries();

} // namespace pentatron::kernels

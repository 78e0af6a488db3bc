/// The three matrix products of a linear layer, and products of any matrices, through pentatron's
/// GEMM where it is the fastest and LibTorch's elsewhere.
///
/// Shapes, T = tokens: x [T, in], w [out, in], dy [T, out]; rows may be strided, columns are
/// contiguous.
#pragma once

#include <ATen/core/Tensor.h>

namespace pentatron::nn {

class Param;

/// x w^T + bias -> [T, out] of x's type. `bias` [out] may be undefined.
at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
void matmul_nt_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                    const at::Tensor& bias = {});
/// Computes the product in the accumulate type of x (fp32 for bf16) and writes it to `out` [T,
/// out].
void matmul_nt_acc(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w);

/// dy w -> [T, in] of dy's type.
at::Tensor matmul_nn(const at::Tensor& dy, const at::Tensor& w);
void matmul_nn_into(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& w);
/// Like matmul_nn_into(), in the accumulate type of dy.
void matmul_nn_acc(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& w);

/// Products with a parameter, in low precision if the parameter requests it.
at::Tensor matmul_nt(const at::Tensor& x, const Param& weight, const at::Tensor& bias = {});
void matmul_nt_into(const at::Tensor& out, const at::Tensor& x, const Param& weight,
                    const at::Tensor& bias = {});
at::Tensor matmul_nn(const at::Tensor& dy, const Param& weight);
void matmul_nn_into(const at::Tensor& out, const at::Tensor& dy, const Param& weight);

/// grad [out, in] += dy^T x, summed in grad's type; if `empty`, what grad holds is not read.
void add_matmul_tn(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                   bool empty = false);
/// Adds to the gradient of a parameter, in low precision if the parameter requests it.
void add_matmul_tn(Param& weight, const at::Tensor& dy, const at::Tensor& x);

/// out = a b, of matrices [m, k] and [k, n] or of stacks of them [S, m, k] and [S, k, n]. Views may
/// be transposed; rows of `out` may be strided, its columns are contiguous.
void multiply_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
/// a b of which is known that it is symmetric (b is the transpose of a, or both are polynomials of
/// one matrix): on CPUs what is above the diagonal is not multiplied but copied.
at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b);

/// grad [out] += column sums of dy.
void add_column_sums(const at::Tensor& grad, const at::Tensor& dy);

} // namespace pentatron::nn

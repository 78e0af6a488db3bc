#include "pentatron/nn/ops/matmul.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "pentatron/kernels/gemm/gemm.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/low_precision.h"
#include "pentatron/nn/param.h"

namespace pentatron::nn {

namespace {

/// The tensor itself if its rows are contiguous, else a copy.
at::Tensor rows_contiguous(const at::Tensor& x) {
  return x.stride(1) == 1 && x.stride(0) >= x.size(1) ? x : x.contiguous();
}

/// c = op(a) op(b), of tensors as stored: matrices, or stacks of them.
kernels::GemmArgs gemm_args(const at::Tensor& c, const at::Tensor& a, bool transpose_a,
                            const at::Tensor& b, bool transpose_b) {
  const auto stack_stride = [](const at::Tensor& x) { return x.dim() == 3 ? x.stride(0) : 0; };
  return {.m = c.size(-2),
          .n = c.size(-1),
          .k = a.size(transpose_a ? -2 : -1),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .in_dtype = kernel_dtype(a.scalar_type()),
          .out_dtype = kernel_dtype(c.scalar_type()),
          .a = a.data_ptr(),
          .lda = a.stride(-2),
          .b = b.data_ptr(),
          .ldb = b.stride(-2),
          .c = c.data_ptr(),
          .ldc = c.stride(-2),
          .batch = c.dim() == 3 ? c.size(0) : 1,
          .stride_a = stack_stride(a),
          .stride_b = stack_stride(b),
          .stride_c = stack_stride(c)};
}

/// Whether pentatron's GEMM may write to this tensor.
bool takes(const at::Tensor& c) {
  return c.is_cpu() && c.scalar_type() != at::kDouble && c.stride(-1) == 1;
}

/// Runs pentatron's GEMM if it takes the arguments faster than LibTorch would.
bool try_gemm(const kernels::GemmArgs& args) {
  if (!kernels::gemm_supported(args)) return false;
  kernels::gemm(args);
  return true;
}

bool try_gemm(const at::Tensor& c, const at::Tensor& a, bool transpose_a, const at::Tensor& b,
              bool transpose_b, bool accumulate, const at::Tensor& bias = {}) {
  if (!takes(c)) return false;
  kernels::GemmArgs args = gemm_args(c, a, transpose_a, b, transpose_b);
  args.accumulate = accumulate;
  if (bias.defined()) {
    args.bias = bias.data_ptr();
    args.bias_dtype = kernel_dtype(bias.scalar_type());
  }
  return try_gemm(args);
}

} // namespace

at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  const at::Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  matmul_nt_into(y, x, w, bias);
  return y;
}

void matmul_nt_into(const at::Tensor& out, const at::Tensor& x_in, const at::Tensor& w,
                    const at::Tensor& bias) {
  const at::Tensor x = rows_contiguous(x_in);
  if (try_gemm(out, x, false, w, true, false, bias)) return;
  at::Tensor target = out;
  if (bias.defined()) {
    at::addmm_out(target, bias, x, w.t());
  } else {
    at::mm_out(target, x, w.t());
  }
}

namespace {

/// a b with sums in the type of `out`, by LibTorch.
void multiply_acc(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor target = out;
  if (a.scalar_type() == out.scalar_type()) {
    at::mm_out(target, a, b);
  } else if (a.is_cuda()) {
    at::mm_out(target, a, b, out.scalar_type());
  } else {
    at::mm_out(target, a.to(out.scalar_type()), b.to(out.scalar_type()));
  }
}

} // namespace

void matmul_nt_acc(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  if (!try_gemm(out, x, false, w, true, false)) multiply_acc(out, x, w.t());
}

void matmul_nn_acc(const at::Tensor& out, const at::Tensor& dy, const at::Tensor& w) {
  if (!try_gemm(out, dy, false, w, false, false)) multiply_acc(out, dy, w);
}

at::Tensor matmul_nt(const at::Tensor& x, const Param& weight, const at::Tensor& bias) {
  const at::Tensor y = at::empty({x.size(0), weight.shape()[0]}, x.options());
  matmul_nt_into(y, x, weight, bias);
  return y;
}

void matmul_nt_into(const at::Tensor& out, const at::Tensor& x, const Param& weight,
                    const at::Tensor& bias) {
  if (weight.low_precision) return low_precision_nt_into(out, x, weight, bias);
  matmul_nt_into(out, x, weight.dense_value(), bias);
}

at::Tensor matmul_nn(const at::Tensor& dy, const Param& weight) {
  const at::Tensor dx = at::empty({dy.size(0), weight.shape()[1]}, dy.options());
  matmul_nn_into(dx, dy, weight);
  return dx;
}

void matmul_nn_into(const at::Tensor& out, const at::Tensor& dy, const Param& weight) {
  if (weight.low_precision) return low_precision_nn_into(out, dy, weight);
  matmul_nn_into(out, dy, weight.dense_value());
}

at::Tensor matmul_nn(const at::Tensor& dy, const at::Tensor& w) {
  const at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  matmul_nn_into(dx, dy, w);
  return dx;
}

void matmul_nn_into(const at::Tensor& out, const at::Tensor& dy_in, const at::Tensor& w) {
  const at::Tensor dy = rows_contiguous(dy_in);
  if (try_gemm(out, dy, false, w, false, false)) return;
  at::Tensor target = out;
  at::mm_out(target, dy, w);
}

void add_matmul_tn(const at::Tensor& grad, const at::Tensor& dy_in, const at::Tensor& x_in,
                   bool empty) {
  const at::Tensor dy = rows_contiguous(dy_in), x = rows_contiguous(x_in);
  if (try_gemm(grad, dy, true, x, false, !empty)) return;
  at::Tensor target = grad;
  const int keep = empty ? 0 : 1; // with 0 not even NaN of the old content counts
  if (dy.scalar_type() == grad.scalar_type()) {
    target.addmm_(dy.t(), x, keep);
  } else if (!dy.is_cuda()) {
    target.addmm_(dy.to(grad.scalar_type()).t(), x.to(grad.scalar_type()), keep);
  } else if (empty) {
    at::mm_out(target, dy.t(), x, grad.scalar_type());
  } else {
    // The same tensor as sum and as result: then cuBLAS adds in place, and nothing is copied.
    at::addmm_out(target, target, dy.t(), x, grad.scalar_type());
  }
}

void add_matmul_tn(Param& weight, const at::Tensor& dy, const at::Tensor& x) {
  if (weight.low_precision) return add_low_precision_tn(weight, dy, x);
  const Param::Sum sum = weight.sum_to_write();
  add_matmul_tn(sum.tensor, dy, x, sum.empty);
}

namespace {

/// How a matrix, or a stack of them, is stored: row-major, or as the transpose of that.
struct StoredMatrix {
  at::Tensor matrix;
  bool transposed = false;

  explicit StoredMatrix(const at::Tensor& x) : matrix(x) {
    const auto is_row_major = [](const at::Tensor& m) {
      return m.stride(-1) == 1 && m.stride(-2) >= m.size(-1);
    };
    if (is_row_major(x)) return;
    matrix = x.transpose(-2, -1);
    transposed = is_row_major(matrix);
    if (!transposed) matrix = x.contiguous();
  }
};

/// out = a b, or what is on and below its diagonal.
bool try_multiply(const at::Tensor& out, const at::Tensor& a_seen, const at::Tensor& b_seen,
                  bool lower) {
  if (!takes(out)) return false;
  const StoredMatrix a(a_seen), b(b_seen);
  kernels::GemmArgs args = gemm_args(out, a.matrix, a.transposed, b.matrix, b.transposed);
  args.lower = lower;
  return try_gemm(args);
}

/// Copies what is below the diagonals of the matrices [n, n] of `x` above them.
template <class T> void mirror(const at::Tensor& x) {
  constexpr int64_t kTile = 32;
  const int64_t n = x.size(-1), tiles = (n + kTile - 1) / kTile;
  T* const data = x.mutable_data_ptr<T>();
  at::parallel_for(0, x.numel() / (n * n) * tiles, 1, [&](int64_t first, int64_t last) {
    T tile[kTile][kTile]; // rows of a matrix often lie a power of two apart: one line of the cache
    for (int64_t at = first; at < last; ++at) {
      T* const own = data + at / tiles * n * n;
      const int64_t i0 = at % tiles * kTile, rows = std::min(n - i0, kTile);
      for (int64_t j0 = i0; j0 < n; j0 += kTile) {
        const int64_t columns = std::min(n - j0, kTile);
        for (int64_t j = 0; j < columns; ++j) std::copy_n(own + (j0 + j) * n + i0, rows, tile[j]);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = i0 == j0 ? i + 1 : 0; j < columns; ++j)
            own[(i0 + i) * n + j0 + j] = tile[j][i];
      }
    }
  });
}

} // namespace

void multiply_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (try_multiply(out, a, b, /*lower=*/false)) return;
  at::Tensor target = out;
  if (out.dim() == 2)
    at::mm_out(target, a, b);
  else if (out.is_contiguous())
    at::bmm_out(target, a, b);
  else
    target.copy_(at::bmm(a, b));
}

at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b) {
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor out = at::empty(sizes, a.options());
  if (!try_multiply(out, a, b, /*lower=*/true)) {
    multiply_into(out, a, b);
  } else if (out.element_size() == 2) {
    mirror<int16_t>(out.view(at::kShort));
  } else {
    mirror<float>(out);
  }
  return out;
}

void add_column_sums(const at::Tensor& grad, const at::Tensor& dy) {
  // LibTorch would write all of a dy of 16 bits as fp32 first; a product with a row of ones reads
  // it once.
  if (c10::elementSize(dy.scalar_type()) == 2 && dy.dim() == 2 && dy.size(0) > 0 &&
      try_gemm(grad.unsqueeze(0), at::ones({1, dy.size(0)}, dy.options()), false,
               rows_contiguous(dy), false, true))
    return;
  at::Tensor target = grad;
  target.add_(at::sum(dy, {0}, false, grad.scalar_type()));
}

} // namespace pentatron::nn

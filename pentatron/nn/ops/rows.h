/// Operators on rows that do not keep their places: what experts are fed with and give back.
///
/// Shapes: T = tokens, R = rows, f = features, k = rows of a token.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/context.h"

namespace pentatron::nn {

/// out[r] = x[source[r]], zero where the source is -1. Its gradient adds up the rows of a token in
/// the order of `places`.
///   x [T, f], source [R] int64, places [T, k] int64: the rows of each token, each row once; -1: no
///   row
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& source, const at::Tensor& places);

/// out[t] = sum over j of rows[places[t, j]], in order of j, in the accumulate type; the adjoint of
/// take_rows.
at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& source, const at::Tensor& places);

/// Rows [begin, begin + rows) of a tensor that one matrix of a stack works on.
struct RowRange {
  int64_t matrix = 0, begin = 0, rows = 0;
};

/// LibTorch's product of rows side by side with a matrix for each group of them (`_grouped_mm`),
/// for GPUs: one launch in place of one for each matrix.
///   x [R, in], weight [E, out, in], ends [E] int32: behind the rows of each matrix -> [R, out]
///   `transposed`: x [R, out] -> x W [R, in]
at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                           bool transposed);
/// From now on grouped_linear() takes this product in bf16 on CPUs too, where it otherwise runs on
/// GPUs alone. For tests and all threads.
void use_grouped_product_on_cpus(bool use);
/// The ends of `matrices` groups [E] int32 on the host; undefined unless each matrix has at most
/// one range, they lie side by side in the matrices' order, and are all `rows`.
at::Tensor ends_of(const std::vector<RowRange>& ranges, int64_t matrices, int64_t rows);

/// Rows of each range times the transposed matrix of it: y[r] = x[r] W[m]^T + bias_scale[r] b[m].
/// Ranges of a matrix are summed up in their order for its gradient. Rows in no range are zero.
///   x [R, in], weight [E, out, in], bias [E, out] or null, bias_scale [R] in the accumulate type
///   or undefined: 1 -> [R, out]
at::Tensor grouped_linear(const at::Tensor& x, std::vector<RowRange> ranges, Param& weight,
                          Param* bias, const at::Tensor& bias_scale, const ForwardContext& ctx);

} // namespace pentatron::nn

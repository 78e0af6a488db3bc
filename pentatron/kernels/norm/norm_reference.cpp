#include <cmath>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/norm/norm_entries.h"

namespace pentatron::kernels {

namespace {

template <class T> void forward(const NormForward& a) {
  using A = acc_t<T>;
  const auto weight =
      widen<A>(a.weight, a.weight_dtype, a.cols, 1, a.weight != nullptr && a.zero_centered ? 1 : 0);
  const auto bias = widen<A>(a.bias, a.weight_dtype, a.cols, 0);
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const int64_t n = a.cols;
#pragma omp parallel for schedule(static) if (a.rows * n > 1 << 14)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* s = static_cast<const T*>(a.x) + a.x_rows.offset(r, n);
    if (a.residual != nullptr) {
      const T* residual = static_cast<const T*>(a.residual) + a.residual_rows.offset(r, n);
      T* sum = static_cast<T*>(a.sum) + a.sum_rows.offset(r, n);
      for (int64_t i = 0; i < n; ++i) sum[i] = from_acc<T>(to_acc(s[i]) + to_acc(residual[i]));
      s = sum;
    }
    A mean = 0;
    if (layer_norm) {
      for (int64_t i = 0; i < n; ++i) mean += to_acc(s[i]);
      mean /= static_cast<A>(n);
    }
    A square = 0;
    for (int64_t i = 0; i < n; ++i) {
      const A d = to_acc(s[i]) - mean;
      square += d * d;
    }
    const A rstd = 1 / std::sqrt(square / static_cast<A>(n) + static_cast<A>(a.eps));
    T* y = static_cast<T*>(a.y) + a.y_rows.offset(r, n);
    for (int64_t i = 0; i < n; ++i)
      y[i] = from_acc<T>(weight[i] * ((to_acc(s[i]) - mean) * rstd) + bias[i]);
    if (layer_norm && a.mean != nullptr) static_cast<A*>(a.mean)[r] = mean;
    if (a.rstd != nullptr) static_cast<A*>(a.rstd)[r] = rstd;
  }
}

/// dweight and dbias: a block of columns per task, so that every sum runs over the rows in order.
template <class T> void backward_weight(const NormBackward& a) {
  using A = acc_t<T>;
  constexpr int64_t kBlock = 64;
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const int64_t n = a.cols;
#pragma omp parallel for schedule(static) if (a.rows * n > 1 << 14)
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t width = std::min(kBlock, n - begin);
    A dweight[kBlock] = {}, dbias[kBlock] = {};
    for (int64_t r = 0; r < a.rows; ++r) {
      const T* dy = static_cast<const T*>(a.dy) + a.dy_rows.offset(r, n) + begin;
      const T* x = static_cast<const T*>(a.x) + a.x_rows.offset(r, n) + begin;
      const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : 0;
      const A rstd = static_cast<const A*>(a.rstd)[r];
      for (int64_t i = 0; i < width; ++i) {
        dweight[i] += to_acc(dy[i]) * ((to_acc(x[i]) - mean) * rstd);
        dbias[i] += to_acc(dy[i]);
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      if (a.dweight != nullptr) static_cast<A*>(a.dweight)[begin + i] += dweight[i];
      if (a.dbias != nullptr) static_cast<A*>(a.dbias)[begin + i] += dbias[i];
    }
  }
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dsum with g = w dy; RMSNorm has no mean(g).
template <class T> void backward_input(const NormBackward& a) {
  using A = acc_t<T>;
  const auto weight =
      widen<A>(a.weight, a.weight_dtype, a.cols, 1, a.weight != nullptr && a.zero_centered ? 1 : 0);
  const bool layer_norm = a.kind == NormKind::kLayerNorm;
  const int64_t n = a.cols;
#pragma omp parallel for schedule(static) if (a.rows * n > 1 << 14)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* dy = static_cast<const T*>(a.dy) + a.dy_rows.offset(r, n);
    const T* x = static_cast<const T*>(a.x) + a.x_rows.offset(r, n);
    const T* dsum = a.dsum ? static_cast<const T*>(a.dsum) + a.dsum_rows.offset(r, n) : nullptr;
    T* dx = static_cast<T*>(a.dx) + a.dx_rows.offset(r, n);
    const A mean = layer_norm ? static_cast<const A*>(a.mean)[r] : 0;
    const A rstd = static_cast<const A*>(a.rstd)[r];
    A g_sum = 0, g_xhat_sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const A g = weight[i] * to_acc(dy[i]);
      g_sum += g;
      g_xhat_sum += g * ((to_acc(x[i]) - mean) * rstd);
    }
    const A g_mean = layer_norm ? g_sum / static_cast<A>(n) : 0;
    const A g_xhat_mean = g_xhat_sum / static_cast<A>(n);
    for (int64_t i = 0; i < n; ++i) {
      const A xhat = (to_acc(x[i]) - mean) * rstd;
      const A d = rstd * (weight[i] * to_acc(dy[i]) - g_mean - xhat * g_xhat_mean);
      dx[i] = from_acc<T>(dsum != nullptr ? d + to_acc(dsum[i]) : d);
    }
  }
}

} // namespace

void NormReference::run(const NormForward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) { forward<T>(args); });
}

void NormReference::run(const NormBackward& args, const Context&) {
  visit_dtype(args.dtype, [&]<class T>(T) {
    // dx may overwrite x or dy, so it comes last.
    if (args.dweight != nullptr || args.dbias != nullptr) backward_weight<T>(args);
    if (args.dx != nullptr) backward_input<T>(args);
  });
}

} // namespace pentatron::kernels

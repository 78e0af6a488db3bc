// Included once per instruction set by norm_simd.cpp.

template <class T>
const T* row_of(const void* p, const RowLayout& layout, int64_t row, int64_t cols) {
  return p == nullptr ? nullptr : static_cast<const T*>(p) + layout.offset(row, cols);
}
template <class T> T* row_of(void* p, const RowLayout& layout, int64_t row, int64_t cols) {
  return p == nullptr ? nullptr : static_cast<T*>(p) + layout.offset(row, cols);
}

template <NormKind kKind, class T>
void forward_row(const NormForward& a, const float* weight, const float* bias, int64_t r) {
  const int64_t n = a.cols;
  const float inv_n = 1.0f / static_cast<float>(n);
  const T* s = row_of<T>(a.x, a.x_rows, r, n);
  const T* residual = row_of<T>(a.residual, a.residual_rows, r, n);
  T* out = row_of<T>(a.sum, a.sum_rows, r, n);
  T* y = row_of<T>(a.y, a.y_rows, r, n);

  // The first pass over the row adds the residual, whichever statistic it computes.
  const auto first_pass = [&](auto&& f) {
    if (residual == nullptr)
      return sum_vectors(n, [&](int64_t i, auto lanes) { return f(load(s + i, lanes)); });
    return sum_vectors(n, [&](int64_t i, auto lanes) {
      const VF v = load(s + i, lanes) + load(residual + i, lanes);
      store(out + i, v, lanes);
      return f(rounded<T>(v));
    });
  };
  float mean = 0, square;
  if constexpr (kKind == NormKind::kLayerNorm) {
    mean = first_pass([&](VF v) { return v; }) * inv_n;
    if (residual != nullptr) s = out;
    square = sum_vectors(n, [&](int64_t i, auto lanes) {
      const VF d = only(load(s + i, lanes) - mean, lanes);
      return d * d;
    });
  } else {
    square = first_pass([&](VF v) { return v * v; });
    if (residual != nullptr) s = out;
  }
  const float rstd = 1.0f / std::sqrt(square * inv_n + static_cast<float>(a.eps));
  for_vectors(n, [&](int64_t i, auto lanes) {
    const VF xhat = (load(s + i, lanes) - mean) * rstd;
    if constexpr (kKind == NormKind::kLayerNorm)
      store(y + i, fma(load(weight + i, lanes), xhat, load(bias + i, lanes)), lanes);
    else
      store(y + i, load(weight + i, lanes) * xhat, lanes);
  });
  if (kKind == NormKind::kLayerNorm && a.mean != nullptr) static_cast<float*>(a.mean)[r] = mean;
  if (a.rstd != nullptr) static_cast<float*>(a.rstd)[r] = rstd;
}

/// Adds the row to dweight and dbias (either may be null) and writes dx.
template <NormKind kKind, class T>
void backward_row(const NormBackward& a, const float* weight, float* dweight, float* dbias,
                  int64_t r) {
  constexpr bool kLayerNorm = kKind == NormKind::kLayerNorm;
  const int64_t n = a.cols;
  const T* dy = row_of<T>(a.dy, a.dy_rows, r, n);
  const T* x = row_of<T>(a.x, a.x_rows, r, n);
  const float mean = kLayerNorm ? static_cast<const float*>(a.mean)[r] : 0.0f;
  const float rstd = static_cast<const float*>(a.rstd)[r];
  VF g_sum{};
  const float g_xhat_sum = sum_vectors(n, [&](int64_t i, auto lanes) {
    const VF d = load(dy + i, lanes);
    const VF xhat = (load(x + i, lanes) - mean) * rstd;
    if (dweight != nullptr) store(dweight + i, fma(d, xhat, load(dweight + i, lanes)), lanes);
    if (dbias != nullptr) store(dbias + i, d + load(dbias + i, lanes), lanes);
    const VF g = load(weight + i, lanes) * d;
    if constexpr (kLayerNorm) g_sum += g;
    return only(g * xhat, lanes);
  });
  if (a.dx == nullptr) return;
  const float inv_n = 1.0f / static_cast<float>(n);
  const float g_mean = kLayerNorm ? sum(g_sum) * inv_n : 0.0f;
  const float g_xhat_mean = g_xhat_sum * inv_n;
  const T* dsum = row_of<T>(a.dsum, a.dsum_rows, r, n);
  T* dx = row_of<T>(a.dx, a.dx_rows, r, n);
  for_vectors(n, [&](int64_t i, auto lanes) {
    const VF xhat = (load(x + i, lanes) - mean) * rstd;
    VF d = (load(weight + i, lanes) * load(dy + i, lanes) - g_mean - xhat * g_xhat_mean) * rstd;
    if (dsum != nullptr) d += load(dsum + i, lanes);
    store(dx + i, d, lanes);
  });
}

template <NormKind kKind, class T> void forward(const NormForward& a) {
  const auto weight = widen<float>(a.weight, a.weight_dtype, a.cols, 1,
                                   a.weight != nullptr && a.zero_centered ? 1 : 0);
  const auto bias = widen<float>(a.bias, a.weight_dtype, a.cols, 0);
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 14)
  for (int64_t r = 0; r < a.rows; ++r) forward_row<kKind, T>(a, weight.data(), bias.data(), r);
}

template <NormKind kKind, class T> void backward(const NormBackward& a, const Context& context) {
  const auto weight = widen<float>(a.weight, a.weight_dtype, a.cols, 1,
                                   a.weight != nullptr && a.zero_centered ? 1 : 0);
  const RowChunks chunks(a.rows);
  std::span<std::byte> workspace = context.workspace;
  ColumnSums dweight(a.rows, a.dweight ? a.cols : 0, workspace),
      dbias(a.rows, a.dbias ? a.cols : 0, workspace);
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 14)
  for (int64_t k = 0; k < chunks.count; ++k) {
    float* dweight_k = a.dweight ? dweight.begin_chunk(k) : nullptr;
    float* dbias_k = a.dbias ? dbias.begin_chunk(k) : nullptr;
    const int64_t end = std::min(a.rows, (k + 1) * chunks.size);
    for (int64_t r = k * chunks.size; r < end; ++r)
      backward_row<kKind, T>(a, weight.data(), dweight_k, dbias_k, r);
  }
  if (a.dweight != nullptr) dweight.add_to(static_cast<float*>(a.dweight));
  if (a.dbias != nullptr) dbias.add_to(static_cast<float*>(a.dbias));
}

/// f.operator()<kind>(T{}).
template <class F> void visit(NormKind kind, DType dtype, F&& f) {
  visit_float_dtype(dtype, [&]<class T>(T t) {
    if (kind == NormKind::kRmsNorm)
      f.template operator()<NormKind::kRmsNorm>(t);
    else
      f.template operator()<NormKind::kLayerNorm>(t);
  });
}

void run(const NormForward& a, const Context&) {
  visit(a.kind, a.dtype, [&]<NormKind kKind, class T>(T) { forward<kKind, T>(a); });
}
void run(const NormBackward& a, const Context& context) {
  visit(a.kind, a.dtype, [&]<NormKind kKind, class T>(T) { backward<kKind, T>(a, context); });
}

// Included once per instruction set by hadamard_simd.cpp. Sums are those of the reference, in its
// order.

/// Some columns of sixteen rows, of which `given` are there.
template <class V, class T, class A, class Lanes>
void transform_columns(const T* x, int64_t given, A* out, int64_t cols, bool inverse, Lanes lanes) {
  V v[kHadamardSize];
  for (int64_t i = 0; i < kHadamardSize; ++i) {
    v[i] = i < given ? load(x + i * cols, lanes) : V{};
    if (!inverse && kHadamardSigns[static_cast<size_t>(i)] < 0) v[i] = -v[i];
  }
#pragma GCC unroll 4
  for (int64_t apart = 1; apart < kHadamardSize; apart *= 2)
#pragma GCC unroll 16
    for (int64_t i = 0; i < kHadamardSize; ++i) {
      if ((i & apart) != 0) continue;
      const V sum = v[i] + v[i + apart];
      v[i + apart] = v[i] - v[i + apart];
      v[i] = sum;
    }
  for (int64_t i = 0; i < kHadamardSize; ++i) {
    v[i] *= A{0.25};
    if (inverse && kHadamardSigns[static_cast<size_t>(i)] < 0) v[i] = -v[i];
    store(out + i * cols, v[i], lanes);
  }
}

template <class T> void apply(const Hadamard& h) {
  using A = acc_t<T>;
  using V = Vec<A>;
  const int64_t blocks = hadamard_rows(h.rows) / kHadamardSize;
#pragma omp parallel for schedule(static) if (h.rows * h.cols > 1 << 13)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = block * kHadamardSize;
    const T* const x = static_cast<const T*>(h.x) + row * h.cols;
    A* const out = static_cast<A*>(h.out) + row * h.cols;
    for_vectors<V>(0, h.cols, [&](int64_t col, auto lanes) {
      transform_columns<V>(x + col, h.rows - row, out + col, h.cols, h.inverse, lanes);
    });
  }
}

void run(const Hadamard& h) {
  visit_dtype(h.dtype, [&]<class T>(T) { apply<T>(h); });
}

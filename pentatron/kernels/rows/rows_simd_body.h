// Included once per instruction set by rows_simd.cpp.

template <class T> void sum_row(const SumRows& a, const int64_t* places, T* y) {
  const auto* const x = static_cast<const T*>(a.x);
  int64_t first = 0, count = 0;
  for (int64_t j = a.k - 1; j >= 0; --j)
    if (places[j] >= 0) first = j, ++count;
  const size_t bytes = static_cast<size_t>(a.cols) * sizeof(T);
  if (count == 0) {
    std::memset(static_cast<void*>(y), 0, bytes);
  } else if (count == 1) {
    std::memcpy(static_cast<void*>(y), x + places[first] * a.cols, bytes);
  } else {
    for_vectors(a.cols, [&](int64_t i, auto lanes) {
      VF sum = load(x + places[first] * a.cols + i, lanes);
      for (int64_t j = first + 1; j < a.k; ++j)
        if (places[j] >= 0) sum += load(x + places[j] * a.cols + i, lanes);
      store(y + i, sum, lanes);
    });
  }
}

template <class T> void apply(const SumRows& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r)
    sum_row(a, a.places + r * a.k, static_cast<T*>(a.y) + r * a.cols);
}

void run(const SumRows& a) {
  visit_float_dtype(a.dtype, [&]<class T>(T) { apply<T>(a); });
}

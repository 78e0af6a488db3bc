// Included once per instruction set by rope_simd.cpp.

/// Neighbouring lanes exchanged.
inline VF swap_pairs(VF v) {
#if PT_LANES == 16
  return _mm512_permute_ps(v, 0xB1);
#else
  return _mm256_permute_ps(v, 0xB1);
#endif
}
/// The lower half of the lanes, each twice.
inline VF repeat_lower(VF v) {
  const VU twice = lane_numbers() >> 1;
#if PT_LANES == 16
  return _mm512_permutexvar_ps((__m512i)twice, v);
#else
  return _mm256_permutevar8x32_ps(v, (__m256i)twice);
#endif
}

/// Pairs (i, i + half).
template <class T>
void rotate_halves(const T* x, T* y, const float* cos, const float* sin, int64_t half, float sign) {
  for_vectors(half, [&](int64_t i, auto lanes) {
    const VF a = load(x + i, lanes), b = load(x + half + i, lanes);
    const VF c = load(cos + i, lanes), s = load(sin + i, lanes) * sign;
    store(y + i, a * c - b * s, lanes);
    store(y + half + i, fma(a, s, b * c), lanes);
  });
}

/// Pairs (2i, 2i + 1).
template <class T>
void rotate_neighbours(const T* x, T* y, const float* cos, const float* sin, int64_t half,
                       float sign) {
  const VF odd = ((VI)lane_numbers() & 1) == 0 ? broadcast(-sign) : broadcast(sign);
  for_vectors(2 * half, [&](int64_t i, auto lanes) {
    const Part pairs{static_cast<int>(std::min(kLanes / 2, half - i / 2))};
    const VF v = load(x + i, lanes);
    const VF c = repeat_lower(load(cos + i / 2, pairs)), s = repeat_lower(load(sin + i / 2, pairs));
    store(y + i, v * c + swap_pairs(v) * (s * odd), lanes);
  });
}

template <class T> void rotate(const Rope& a) {
  const int64_t half = a.rotary_dim / 2;
  const float sign = a.transpose ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static) if (a.tokens * a.heads * a.head_size > 1 << 14)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* cos = static_cast<const float*>(a.cos) + a.positions[t] * half;
    const float* sin = static_cast<const float*>(a.sin) + a.positions[t] * half;
    for (int64_t h = 0; h < a.heads; ++h) {
      const T* x = static_cast<const T*>(a.x) + t * a.x_token_stride + h * a.x_head_stride;
      T* y = static_cast<T*>(a.y) + t * a.y_token_stride + h * a.y_head_stride;
      if (a.interleaved)
        rotate_neighbours(x, y, cos, sin, half, sign);
      else
        rotate_halves(x, y, cos, sin, half, sign);
      if (x != y)
        std::memcpy(y + a.rotary_dim, x + a.rotary_dim, (a.head_size - a.rotary_dim) * sizeof(T));
    }
  }
}

void run(const Rope& a) {
  visit_float_dtype(a.dtype, [&]<class T>(T) { rotate<T>(a); });
}

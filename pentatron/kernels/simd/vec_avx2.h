/// Vectors of 8 floats or 4 doubles, with the functions of vec_avx512.h. Include it only between
/// `#pragma GCC push_options` with `target("avx2,fma,f16c")` and `pop_options`, after
/// <immintrin.h>, <cstring> and scalar.h.
#pragma once

namespace pentatron::kernels::avx2 {

struct F32 {
  static constexpr int kWidth = 8;
  using Scalar = float;
  __m256 v;
};
struct F64 {
  static constexpr int kWidth = 4;
  using Scalar = double;
  __m256d v;
};
template <class Acc> using Vec = std::conditional_t<std::is_same_v<Acc, double>, F64, F32>;

template <class V> V splat(typename V::Scalar x);
template <> inline F32 splat<F32>(float x) {
  return {_mm256_set1_ps(x)};
}
template <> inline F64 splat<F64>(double x) {
  return {_mm256_set1_pd(x)};
}

inline F32 widen(bf16, __m128i bits) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline F32 widen(fp16, __m128i bits) {
  return {_mm256_cvtph_ps(bits)};
}

inline F32 load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline F64 load(const double* p) {
  return {_mm256_loadu_pd(p)};
}
template <class T> F32 load(const T* p) {
  return widen(T{}, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// All ones in the first n lanes.
inline __m256i mask32(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i mask64(int64_t n) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
inline F32 load(const float* p, int64_t n, float fill = 0) {
  const __m256i mask = mask32(n);
  return {_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask),
                           _mm256_castsi256_ps(mask))};
}
inline F64 load(const double* p, int64_t n, double fill = 0) {
  const __m256i mask = mask64(n);
  return {_mm256_blendv_pd(_mm256_set1_pd(fill), _mm256_maskload_pd(p, mask),
                           _mm256_castsi256_pd(mask))};
}
template <class T> F32 load(const T* p, int64_t n, float fill = 0) {
  T lanes[8] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return {_mm256_blendv_ps(_mm256_set1_ps(fill), load(lanes).v, _mm256_castsi256_ps(mask32(n)))};
}

inline __m128i narrow(bf16, F32 x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
inline __m128i narrow(fp16, F32 x) {
  return _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.v);
}
inline void store(double* p, F64 x) {
  _mm256_storeu_pd(p, x.v);
}
template <class T> void store(T* p, F32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(T{}, x));
}
inline void store(float* p, F32 x, int64_t n) {
  _mm256_maskstore_ps(p, mask32(n), x.v);
}
inline void store(double* p, F64 x, int64_t n) {
  _mm256_maskstore_pd(p, mask64(n), x.v);
}
template <class T> void store(T* p, F32 x, int64_t n) {
  T lanes[8];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

inline F32 operator+(F32 a, F32 b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline F32 operator-(F32 a, F32 b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline F32 operator*(F32 a, F32 b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline F32 operator/(F32 a, F32 b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline F32 sqrt(F32 a) {
  return {_mm256_sqrt_ps(a.v)};
}
inline F64 operator+(F64 a, F64 b) {
  return {_mm256_add_pd(a.v, b.v)};
}
inline F64 operator-(F64 a, F64 b) {
  return {_mm256_sub_pd(a.v, b.v)};
}
inline F64 operator*(F64 a, F64 b) {
  return {_mm256_mul_pd(a.v, b.v)};
}
inline F64 operator/(F64 a, F64 b) {
  return {_mm256_div_pd(a.v, b.v)};
}
inline F64 fma(F64 a, F64 b, F64 c) {
  return {_mm256_fmadd_pd(a.v, b.v, c.v)};
}
inline F64 sqrt(F64 a) {
  return {_mm256_sqrt_pd(a.v)};
}

inline F64 low_half(F32 x) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(x.v))};
}
inline F64 high_half(F32 x) {
  return {_mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1))};
}

inline float reduce_max(F32 x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline float reduce_add(F32 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

inline F32 round_to_int(F32 x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// x 2^n for integral n in [-252, 252]: two factors, so that neither overflows and a subnormal
/// result is rounded once.
inline F32 scale_by_power(F32 x, F32 n) {
  const __m256i whole = _mm256_cvtps_epi32(n.v);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, f1), f2)};
}

} // namespace pentatron::kernels::avx2

/// Vectors of 16 floats or 8 doubles. Include it only between `#pragma GCC push_options` with
/// `target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")` and `pop_options`, after
/// <immintrin.h> and scalar.h.
///
/// `load(p)` and `load(p, n, fill)` widen bf16 and fp16 to float; `store` rounds to nearest even
/// and keeps NaN, bit for bit as common/scalar.h does (vcvtneps2bf16 does not: it flushes
/// subnormals). `max(a, b)` is b where a is NaN.
#pragma once

namespace pentatron::kernels::avx512 {

struct F32 {
  static constexpr int kWidth = 16;
  using Scalar = float;
  __m512 v;
};
struct F64 {
  static constexpr int kWidth = 8;
  using Scalar = double;
  __m512d v;
};
template <class Acc> using Vec = std::conditional_t<std::is_same_v<Acc, double>, F64, F32>;

template <class V> V splat(typename V::Scalar x);
template <> inline F32 splat<F32>(float x) {
  return {_mm512_set1_ps(x)};
}
template <> inline F64 splat<F64>(double x) {
  return {_mm512_set1_pd(x)};
}

inline __mmask16 mask16(int64_t n) {
  return static_cast<__mmask16>((1U << n) - 1U);
}
inline __mmask8 mask8(int64_t n) {
  return static_cast<__mmask8>((1U << n) - 1U);
}

inline F32 widen(bf16, __m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline F32 widen(fp16, __m256i bits) {
  return {_mm512_cvtph_ps(bits)};
}

inline F32 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline F64 load(const double* p) {
  return {_mm512_loadu_pd(p)};
}
template <class T> F32 load(const T* p) {
  return widen(T{}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32 load(const float* p, int64_t n, float fill = 0) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), mask16(n), p)};
}
inline F64 load(const double* p, int64_t n, double fill = 0) {
  return {_mm512_mask_loadu_pd(_mm512_set1_pd(fill), mask8(n), p)};
}
template <class T> F32 load(const T* p, int64_t n, float fill = 0) {
  const F32 x = widen(T{}, _mm256_maskz_loadu_epi16(mask16(n), p));
  return {_mm512_mask_blend_ps(mask16(n), _mm512_set1_ps(fill), x.v)};
}

inline __m256i narrow(bf16, F32 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet));
}
inline __m256i narrow(fp16, F32 x) {
  return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline void store(float* p, F32 x) {
  _mm512_storeu_ps(p, x.v);
}
inline void store(double* p, F64 x) {
  _mm512_storeu_pd(p, x.v);
}
template <class T> void store(T* p, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(T{}, x));
}
inline void store(float* p, F32 x, int64_t n) {
  _mm512_mask_storeu_ps(p, mask16(n), x.v);
}
inline void store(double* p, F64 x, int64_t n) {
  _mm512_mask_storeu_pd(p, mask8(n), x.v);
}
template <class T> void store(T* p, F32 x, int64_t n) {
  _mm256_mask_storeu_epi16(p, mask16(n), narrow(T{}, x));
}

inline F32 operator+(F32 a, F32 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline F32 operator-(F32 a, F32 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline F32 operator*(F32 a, F32 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline F32 operator/(F32 a, F32 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline F32 fma(F32 a, F32 b, F32 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32 max(F32 a, F32 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline F32 min(F32 a, F32 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline F32 sqrt(F32 a) {
  return {_mm512_sqrt_ps(a.v)};
}
inline F64 operator+(F64 a, F64 b) {
  return {_mm512_add_pd(a.v, b.v)};
}
inline F64 operator-(F64 a, F64 b) {
  return {_mm512_sub_pd(a.v, b.v)};
}
inline F64 operator*(F64 a, F64 b) {
  return {_mm512_mul_pd(a.v, b.v)};
}
inline F64 operator/(F64 a, F64 b) {
  return {_mm512_div_pd(a.v, b.v)};
}
inline F64 fma(F64 a, F64 b, F64 c) {
  return {_mm512_fmadd_pd(a.v, b.v, c.v)};
}
inline F64 sqrt(F64 a) {
  return {_mm512_sqrt_pd(a.v)};
}

inline F64 low_half(F32 x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x.v))};
}
inline F64 high_half(F32 x) {
  return {_mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1))};
}

inline float reduce_max(F32 x) {
  return _mm512_reduce_max_ps(x.v);
}
inline float reduce_add(F32 x) {
  return _mm512_reduce_add_ps(x.v);
}

inline F32 round_to_int(F32 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// x 2^n for integral n, with correct overflow and underflow.
inline F32 scale_by_power(F32 x, F32 n) {
  return {_mm512_scalef_ps(x.v, n.v)};
}

} // namespace pentatron::kernels::avx512

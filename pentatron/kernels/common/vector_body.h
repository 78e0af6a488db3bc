// The vectors of one instruction set; included by foreach_isa.h only. Arithmetic, comparison and
// selection (c ? a : b) are the compiler's own operators on vectors; here is what they lack: loads
// with conversion, tails, rounding, sums. bf16 and fp16 are rounded bit for bit as scalar.h does
// (vcvtneps2bf16 does not: it flushes subnormals).

typedef float VF __attribute__((vector_size(4 * PT_LANES)));
typedef double VD __attribute__((vector_size(4 * PT_LANES)));
typedef int32_t VI __attribute__((vector_size(4 * PT_LANES)));
typedef uint32_t VU __attribute__((vector_size(4 * PT_LANES)));

/// The vector of an accumulate type.
template <class A> using Vec = std::conditional_t<std::is_same_v<A, double>, VD, VF>;

template <class V> constexpr int64_t kLanesOf = sizeof(V) / sizeof(V{}[0]);
constexpr int64_t kLanes = PT_LANES; ///< of a VF

inline VF broadcast(float x) {
  return x - VF{}; // no operation: it keeps the sign of a zero
}
inline VI as_int(VF x) {
  return (VI)x;
}
inline VF as_float(VI x) {
  return (VF)x;
}
inline VU lane_numbers() {
  VU v{};
  for (int i = 0; i < PT_LANES; ++i) v[i] = i;
  return v;
}

/// How many lanes of a vector are used: all, or the first `count`. Lanes that are not used read as
/// zero and are not written.
struct Full {};
struct Part {
  int count;
};

/// Bits of bf16 in the upper halves, rounded to nearest even; NaN becomes quiet.
inline VI round_bf16(VF v) {
  const VI u = as_int(v);
  const VU bits = (VU)u; // the sum may leave the range of a signed number, of a NaN
  const VI rounded = (VI)(bits + 0x7FFF + ((bits >> 16) & 1));
  return (v != v) ? (u | 0x400000) : rounded;
}

#if PT_LANES == 16
inline VF fma(VF a, VF b, VF c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline VD fma(VD a, VD b, VD c) {
  return _mm512_fmadd_pd(a, b, c);
}
inline VF sqrt(VF v) {
  return _mm512_sqrt_ps(v);
}
inline VD sqrt(VD v) {
  return _mm512_sqrt_pd(v);
}
/// b where a is NaN.
inline VF max(VF a, VF b) {
  return _mm512_max_ps(a, b);
}
inline VF round_int(VF v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// p 2^n for integral n in [-150, 129], correct for subnormal results and overflow.
inline VF scale_exponent(VF p, VF n) {
  return _mm512_scalef_ps(p, n);
}
inline VD lower_doubles(VF v) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}
inline VD upper_doubles(VF v) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}

using Half = __m256i; ///< 16 bits a lane
inline VF widen_bf16(Half bits) {
  return (VF)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}
inline Half narrow_bf16(VF v) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)round_bf16(v), 16));
}
inline VF widen_fp16(Half bits) {
  return _mm512_cvtph_ps(bits);
}
inline Half narrow_fp16(VF v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Half load_half(const void* p, Full) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_half(void* p, Half h, Full) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), h);
}

inline __mmask16 mask_of(Part lanes) {
  return static_cast<__mmask16>((1u << lanes.count) - 1);
}
inline Half load_half(const void* p, Part lanes) {
  return _mm256_maskz_loadu_epi16(mask_of(lanes), p);
}
inline void store_half(void* p, Half h, Part lanes) {
  _mm256_mask_storeu_epi16(p, mask_of(lanes), h);
}
inline VF load(const float* p, Part lanes) {
  return _mm512_maskz_loadu_ps(mask_of(lanes), p);
}
inline void store(float* p, VF v, Part lanes) {
  _mm512_mask_storeu_ps(p, mask_of(lanes), v);
}
inline VD load(const double* p, Part lanes) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask_of(lanes)), p);
}
inline void store(double* p, VD v, Part lanes) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask_of(lanes)), v);
}
#else
inline VF fma(VF a, VF b, VF c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline VD fma(VD a, VD b, VD c) {
  return _mm256_fmadd_pd(a, b, c);
}
inline VF sqrt(VF v) {
  return _mm256_sqrt_ps(v);
}
inline VD sqrt(VD v) {
  return _mm256_sqrt_pd(v);
}
/// b where a is NaN.
inline VF max(VF a, VF b) {
  return _mm256_max_ps(a, b);
}
inline VF round_int(VF v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// p 2^n for integral n in [-150, 129], correct for subnormal results and overflow: two factors
/// that are normal.
inline VF scale_exponent(VF p, VF n) {
  const VI whole = (VI)_mm256_cvtps_epi32(n), half = whole >> 1;
  return p * as_float((half + 127) << 23) * as_float((whole - half + 127) << 23);
}
inline VD lower_doubles(VF v) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}
inline VD upper_doubles(VF v) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

using Half = __m128i; ///< 16 bits a lane
inline VF widen_bf16(Half bits) {
  return (VF)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
}
inline Half narrow_bf16(VF v) {
  const __m256i u = _mm256_srli_epi32((__m256i)round_bf16(v), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}
inline VF widen_fp16(Half bits) {
  return _mm256_cvtph_ps(bits);
}
inline Half narrow_fp16(VF v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Half load_half(const void* p, Full) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline void store_half(void* p, Half h, Full) {
  _mm_storeu_si128(static_cast<__m128i*>(p), h);
}

inline __m256i mask_of(Part lanes) {
  return (__m256i)((VI)lane_numbers() < lanes.count);
}
inline __m256i mask64_of(Part lanes) {
  return _mm256_cvtepi32_epi64(_mm256_castsi256_si128(mask_of(lanes)));
}
inline Half load_half(const void* p, Part lanes) {
  Half h{};
  std::memcpy(&h, p, 2 * static_cast<size_t>(lanes.count));
  return h;
}
inline void store_half(void* p, Half h, Part lanes) {
  std::memcpy(p, &h, 2 * static_cast<size_t>(lanes.count));
}
inline VF load(const float* p, Part lanes) {
  return _mm256_maskload_ps(p, mask_of(lanes));
}
inline void store(float* p, VF v, Part lanes) {
  _mm256_maskstore_ps(p, mask_of(lanes), v);
}
inline VD load(const double* p, Part lanes) {
  return _mm256_maskload_pd(p, mask64_of(lanes));
}
inline void store(double* p, VD v, Part lanes) {
  _mm256_maskstore_pd(p, mask64_of(lanes), v);
}
#endif

// ---- loads and stores of any element type

inline VF load(const float* p, Full = {}) {
  VF v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, VF v, Full = {}) {
  std::memcpy(p, &v, sizeof v);
}
inline VD load(const double* p, Full = {}) {
  VD v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(double* p, VD v, Full = {}) {
  std::memcpy(p, &v, sizeof v);
}
template <class Lanes = Full> inline VF load(const bf16* p, Lanes lanes = {}) {
  return widen_bf16(load_half(p, lanes));
}
template <class Lanes = Full> inline void store(bf16* p, VF v, Lanes lanes = {}) {
  store_half(p, narrow_bf16(v), lanes);
}
template <class Lanes = Full> inline VF load(const fp16* p, Lanes lanes = {}) {
  return widen_fp16(load_half(p, lanes));
}
template <class Lanes = Full> inline void store(fp16* p, VF v, Lanes lanes = {}) {
  store_half(p, narrow_fp16(v), lanes);
}

/// v as it reads back after a store to T.
template <class T> inline VF rounded(VF v) {
  if constexpr (std::is_same_v<T, bf16>)
    return as_float(round_bf16(v) & ~0xFFFF);
  else if constexpr (std::is_same_v<T, fp16>)
    return widen_fp16(narrow_fp16(v));
  else
    return v;
}

/// v with `rest` in the lanes that are not used.
inline VF only(VF v, Full, float = 0) {
  return v;
}
inline VF only(VF v, Part lanes, float rest = 0) {
  return ((VI)lane_numbers() < lanes.count) ? v : broadcast(rest);
}

// ---- over the lanes

inline float sum(__m256 v) {
  const __m128 h =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return (h[0] + h[2]) + (h[1] + h[3]);
}
/// The largest lane; none is NaN.
inline float largest(__m256 v) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
#if PT_LANES == 16
inline float sum(__m512 v) {
  return sum(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
}
inline float largest(__m512 v) {
  return largest(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
#endif

/// f(i, lanes) over [begin, end) in vectors V.
template <class V = VF, class F> inline void for_vectors(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + kLanesOf<V> <= end; i += kLanesOf<V>) f(i, Full{});
  if (i < end) f(i, Part{static_cast<int>(end - i)});
}
/// The same over [0, n).
template <class F> inline void for_vectors(int64_t n, F&& f) {
  for_vectors<VF>(0, n, f);
}

/// Sum of f(i, lanes) over [0, n), in four chains.
template <class F> inline float sum_vectors(int64_t n, F&& f) {
  VF a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += f(i, Full{});
    b += f(i + kLanes, Full{});
    c += f(i + 2 * kLanes, Full{});
    d += f(i + 3 * kLanes, Full{});
  }
  for (; i + kLanes <= n; i += kLanes) a += f(i, Full{});
  if (i < n) b += f(i, Part{static_cast<int>(n - i)});
  return sum((a + b) + (c + d));
}

// Philox-4x32-10 (base/philox.h), a counter in every lane; included inside a SIMD body.

struct WideProduct {
  VU high;
  VU low;
};

/// 32 x 32 -> 64 bits in every lane; the processor multiplies every other lane.
inline WideProduct multiply(VU a, uint32_t b) {
#if PT_LANES == 16
  const __m512i m = _mm512_set1_epi64(b), x = (__m512i)a;
  const __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  return {(VU)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd),
          (VU)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
#else
  const __m256i m = _mm256_set1_epi64x(b), x = (__m256i)a;
  const __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
  return {(VU)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
          (VU)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
#endif
}

struct PhiloxLanes {
  VU word[4];
};

inline PhiloxLanes philox4x32(PhiloxLanes counter, const std::array<uint32_t, 2>& key) {
  auto& c = counter.word;
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const WideProduct p0 = multiply(c[0], 0xD2511F53u), p1 = multiply(c[2], 0xCD9E8D57u);
    c[0] = p1.high ^ c[1] ^ k0;
    c[1] = p1.low;
    c[2] = p0.high ^ c[3] ^ k1;
    c[3] = p0.low;
  }
  return counter;
}

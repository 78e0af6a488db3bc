// Philox-4x32-10 (base/philox.h), a counter in every lane; included inside a SIMD body.

/// A number in the lower half of every lane; the processor multiplies those, and nothing reads the
/// upper halves.
typedef uint64_t Halves __attribute__((vector_size(4 * PT_LANES)));

inline Halves multiply(Halves a, uint32_t b) {
#if PT_LANES == 16
  return (Halves)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#else
  return (Halves)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#endif
}

struct PhiloxLanes {
  VU word[4];
};

inline PhiloxLanes philox4x32(const PhiloxLanes& counter, const std::array<uint32_t, 2>& key) {
  Halves even[4], odd[4]; // lanes
  for (int w = 0; w < 4; ++w) {
    even[w] = (Halves)counter.word[w];
    odd[w] = even[w] >> 32;
  }
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (Halves* const c : {even, odd}) {
      const Halves p0 = multiply(c[0], 0xD2511F53u), p1 = multiply(c[2], 0xCD9E8D57u);
      c[0] = (p1 >> 32) ^ c[1] ^ k0;
      c[1] = p1;
      c[2] = (p0 >> 32) ^ c[3] ^ k1;
      c[3] = p0;
    }
  PhiloxLanes drawn;
  for (int w = 0; w < 4; ++w) drawn.word[w] = (VU)((even[w] & 0xFFFFFFFFu) | odd[w] << 32);
  return drawn;
}

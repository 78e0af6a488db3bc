// Included once per instruction set by dropout_simd.cpp.

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

/// The words of 64 neighbouring features: `group` is their index over 64.
inline void philox_group(const Dropout& a, uint64_t row_id, uint32_t group, uint32_t* words) {
  for (int64_t lane = 0; lane < 16; lane += kLanes) {
    VU c0 = VU{} + static_cast<uint32_t>(row_id), c1 = VU{} + static_cast<uint32_t>(row_id >> 32);
    VU c2 = lane_numbers() + (group * 16 + static_cast<uint32_t>(lane)), c3 = VU{} + a.site;
    uint32_t k0 = a.key[0], k1 = a.key[1];
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const WideProduct p0 = multiply(c0, 0xD2511F53u), p1 = multiply(c2, 0xCD9E8D57u);
      c0 = p1.high ^ c1 ^ k0;
      c1 = p1.low;
      c2 = p0.high ^ c3 ^ k1;
      c3 = p0.low;
    }
    std::memcpy(words + lane, &c0, sizeof c0);
    std::memcpy(words + 16 + lane, &c1, sizeof c1);
    std::memcpy(words + 32 + lane, &c2, sizeof c2);
    std::memcpy(words + 48 + lane, &c3, sizeof c3);
  }
}

template <class T> void apply(const Dropout& a) {
  const float scale = static_cast<float>(1 / (1 - a.p));
  const auto threshold = static_cast<uint32_t>(dropout_threshold(a.p));
#pragma omp parallel for schedule(static) if (a.rows * a.cols > 1 << 12)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const T* residual =
        a.residual ? static_cast<const T*>(a.residual) + r * a.residual_stride : nullptr;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    const uint64_t id =
        a.row_ids ? a.row_ids[r] : a.row_begin + static_cast<uint64_t>(r) * a.row_step;
    // Zero behind the words: a part of a vector may begin near the end of the group.
    alignas(64) uint32_t words[64 + kLanes] = {};
    for (int64_t col = 0; col < a.cols;) {
      const int64_t feature = a.feature_offset + col, first = feature % 64;
      const int64_t width = std::min(64 - first, a.cols - col);
      philox_group(a, id, static_cast<uint32_t>(feature / 64), words);
      for_vectors(width, [&](int64_t i, auto lanes) {
        VU bits;
        std::memcpy(&bits, words + first + i, sizeof bits);
        VF v = bits >= threshold ? load(x + col + i, lanes) * scale : VF{};
        if (residual != nullptr) v += load(residual + col + i, lanes);
        store(y + col + i, v, lanes);
      });
      col += width;
    }
  }
}

void run(const Dropout& a) {
  visit_float_dtype(a.dtype, [&]<class T>(T) { apply<T>(a); });
}

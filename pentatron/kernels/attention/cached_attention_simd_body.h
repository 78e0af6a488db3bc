// Included by foreach_isa.h only.

#include "pentatron/kernels/common/math_body.h"

/// Scratch of one thread: the queries, the outputs, the scores of a block of keys.
struct Scratch {
  float *q, *o, *p;
};

/// A code e4m3. Its bits, moved, are those of the value times 2^-120; NaN does not occur but in
/// rows whose scale is NaN.
struct Fp8 {
  uint8_t code;
};
inline VF value_of_codes(VI codes) {
  return as_float((codes & 0x7F) << 20 | (codes & 0x80) << 24) * 0x1p120f;
}
inline VF load(const Fp8* p, Full) {
#if PT_LANES == 16
  return value_of_codes(
      (VI)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return value_of_codes(
      (VI)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}
inline VF load(const Fp8* p, Part lanes) {
  Fp8 padded[16] = {};
  std::memcpy(padded, p, static_cast<size_t>(lanes.count));
  return load(padded, Full{});
}

/// What the values of a row of keys or values are multiplied by.
template <class K> inline float scale_of(const K* row, int64_t d) {
  float scale = 1;
  if constexpr (std::is_same_v<K, Fp8>) std::memcpy(&scale, row + d, sizeof scale);
  return scale;
}

template <class K> inline float dot(const float* q, const K* k, int64_t d) {
  return sum_vectors(
      d, [&](int64_t c, auto lanes) { return load(q + c, lanes) * load(k + c, lanes); });
}

/// The cap and the bias of the scores of keys [begin, begin + keys).
inline void adjust_scores(const CachedAttention& a, const CachedItem& item, int64_t head,
                          int64_t begin, int64_t keys, float* scores) {
  const auto cap = static_cast<float>(a.cap);
  for (int64_t h = 0; h < a.heads / a.kv_heads; ++h) {
    float* const p = scores + h * kCachedKeys;
    if (cap > 0) {
      for_vectors(keys, [&](int64_t j, auto lanes) {
        store(p + j, cap * tanh(load(p + j, lanes) / cap), lanes);
      });
    }
    if (a.bias == nullptr) continue;
    const float* const bias = static_cast<const float*>(a.bias) + (head + h) * (2 * a.span - 1) +
                              a.span - 1 + item.position - begin;
    for (int64_t j = 0; j < keys; ++j) p[j] += bias[-j];
  }
}

/// K: what keys and values are kept in.
template <class T, class K>
inline void attend(const CachedAttention& a, const CachedItem& item, const Scratch& s) {
  const int64_t group = a.heads / a.kv_heads, d = a.head_size, e = a.head_size_of_values();
  const int64_t head = item.head * group;
  const auto rows_of = [&](std::span<const void* const> pages, int64_t token) {
    return static_cast<const K*>(pages[static_cast<size_t>(token / a.page)]) +
           token % a.page * a.kv_token_stride + item.head * a.kv_head_stride;
  };
  for (int64_t h = 0; h < group; ++h) {
    const T* const q = static_cast<const T*>(a.q.data) + item.token * a.q.token_stride +
                       (head + h) * a.q.head_stride;
    for_vectors(d, [&](int64_t c, auto lanes) {
      store(s.q + h * d + c, load(q + c, lanes) * static_cast<float>(a.scale), lanes);
      store(s.o + h * d + c, VF{}, lanes);
    });
  }
  for (int64_t h = 0; h < group; ++h) {
    s.q[group * d + h] = a.sinks != nullptr ? static_cast<const float*>(a.sinks)[head + h]
                                            : -kInfinity;  // the largest score so far
    s.o[group * d + h] = a.sinks != nullptr ? 1.0f : 0.0f; // the sum of probabilities so far
  }
  float *const tops = s.q + group * d, *const sums = s.o + group * d;
  for (int64_t begin = item.first, keys = 0; begin < item.last; begin += keys) {
    keys = block_keys(a, begin, item.last); // of one page
    const K *const k = rows_of(item.sequence->k, begin), *const v =
                                                             rows_of(item.sequence->v, begin);
    for (int64_t j = 0; j < keys; ++j) {
      const K* const row = k + j * a.kv_token_stride;
      const float scale = scale_of(row, d);
      for (int64_t h = 0; h < group; ++h)
        s.p[h * kCachedKeys + j] = dot(s.q + h * d, row, d) * scale;
    }
    if (a.cap > 0 || a.bias != nullptr) adjust_scores(a, item, head, begin, keys, s.p);
    for (int64_t h = 0; h < group; ++h) {
      float* const p = s.p + h * kCachedKeys;
      VF best = broadcast(tops[h]);
      for_vectors(keys, [&](int64_t j, auto lanes) {
        best = max(only(load(p + j, lanes), lanes, -kInfinity), best);
      });
      const float top = largest(best);
      const float old = sums[h] > 0 ? exp(broadcast(tops[h] - top))[0] : 0.0f;
      float total = 0;
      for_vectors(keys, [&](int64_t j, auto lanes) {
        const VF e = only(exp(load(p + j, lanes) - top), lanes);
        store(p + j, e, lanes);
        total += sum(e);
      });
      sums[h] = sums[h] * old + total;
      tops[h] = top;
      if (old != 1.0f) {
        for_vectors(e, [&](int64_t c, auto lanes) {
          store(s.o + h * d + c, load(s.o + h * d + c, lanes) * old, lanes);
        });
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      const K* const row = v + j * a.kv_token_stride;
      const float scale = scale_of(row, d);
      for (int64_t h = 0; h < group; ++h) {
        const VF p = broadcast(s.p[h * kCachedKeys + j] * scale);
        for_vectors(e, [&](int64_t c, auto lanes) {
          store(s.o + h * d + c, fma(p, load(row + c, lanes), load(s.o + h * d + c, lanes)), lanes);
        });
      }
    }
  }
  for (int64_t h = 0; h < group; ++h) {
    T* const out = static_cast<T*>(a.out.data) + item.token * a.out.token_stride +
                   (head + h) * a.out.head_stride;
    const float by = 1.0f / sums[h];
    for_vectors(e, [&](int64_t c, auto lanes) {
      store(out + c, load(s.o + h * d + c, lanes) * by, lanes);
    });
  }
}

template <class T>
inline void attend_in(const CachedAttention& a, const CachedItem& item, const Scratch& s) {
  a.fp8 ? attend<T, Fp8>(a, item, s) : attend<T, T>(a, item, s);
}

inline void attend(const CachedAttention& a, const CachedItem& item, const Scratch& s) {
  switch (a.dtype) {
  case DType::kFloat32:
    return attend_in<float>(a, item, s);
  case DType::kBFloat16:
    return attend_in<bf16>(a, item, s);
  default:
    return attend_in<fp16>(a, item, s);
  }
}

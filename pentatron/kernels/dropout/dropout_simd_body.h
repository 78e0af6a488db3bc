// Included once per instruction set by dropout_simd.cpp.

#include "pentatron/kernels/common/philox_body.h"

/// The words of 64 neighbouring features: `group` is their index over 64.
inline void philox_group(const Dropout& a, uint64_t row_id, uint32_t group, uint32_t* words) {
  for (int64_t lane = 0; lane < 16; lane += kLanes) {
    const PhiloxLanes lanes = philox4x32(
        {{VU{} + static_cast<uint32_t>(row_id), VU{} + static_cast<uint32_t>(row_id >> 32),
          lane_numbers() + (group * 16 + static_cast<uint32_t>(lane)), VU{} + a.site}},
        a.key);
    for (int64_t w = 0; w < 4; ++w) std::memcpy(words + 16 * w + lane, &lanes.word[w], sizeof(VU));
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

#include "pentatron/kernels/quantize/fp8_rows.h"

#include <cmath>
#include <cstring>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/quantize/formats.h"

namespace pentatron::kernels {

namespace {

constexpr int64_t kRowsOfAThread = 64;

template <class T> void to_row(const T* x, int64_t cols, uint8_t* out) {
  float amax = 0;
  for (int64_t c = 0; c < cols; ++c) {
    const float size = std::abs(static_cast<float>(to_acc(x[c])));
    if (size > amax || size != size) amax = size; // a NaN stays
  }
  const float share = amax / kE4M3.largest, scale = share == 0 ? 1 : share;
  for (int64_t c = 0; c < cols; ++c)
    out[c] = code_of(kE4M3, rounded_to(kE4M3, static_cast<float>(to_acc(x[c])) / scale));
  std::memcpy(out + cols, &scale, sizeof scale);
}

} // namespace

void to_fp8_rows(DType dtype, int64_t rows, int64_t cols, const void* x, uint8_t* out) {
  visit_dtype(dtype, [&]<class T>(T) {
    parallel_blocks(rows, kRowsOfAThread, [&](int64_t begin, int64_t end, int64_t) {
      for (int64_t r = begin; r < end; ++r)
        to_row(static_cast<const T*>(x) + r * cols, cols, out + r * (cols + kFp8ScaleBytes));
    });
  });
}

void from_fp8_rows(DType dtype, int64_t rows, int64_t cols, const uint8_t* x, void* out) {
  parallel_blocks(rows, kRowsOfAThread, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* const row = x + r * (cols + kFp8ScaleBytes);
      float scale = 0;
      std::memcpy(&scale, row + cols, sizeof scale);
      for (int64_t c = 0; c < cols; ++c)
        store_from_double(out, dtype, r * cols + c, value_of(kE4M3, row[c]) * scale);
    }
  });
}

} // namespace pentatron::kernels

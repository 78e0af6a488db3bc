/// Rows of numbers in FP8, each with a scale: keys and values that generation keeps.
///
/// Shapes: x [rows, cols], in rows of cols + 4 bytes: the codes e4m3 and the scale in fp32, not
/// aligned. scale = amax / 448, or 1 if that is 0; code = cast(x / scale); the value is code scale.
/// A row with a NaN or an infinity reads as NaN. All in fp32; doubles are cast to it first.
#pragma once

#include <cstdint>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

inline constexpr int64_t kFp8ScaleBytes = 4;

void to_fp8_rows(DType dtype, int64_t rows, int64_t cols, const void* x, uint8_t* out);
void from_fp8_rows(DType dtype, int64_t rows, int64_t cols, const uint8_t* x, void* out);

} // namespace pentatron::kernels

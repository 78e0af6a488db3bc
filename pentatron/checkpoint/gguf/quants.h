/// Elements of GGUF tensors as float and back.
///
/// Every value and every rounding is that of ggml's reference, bit for bit as the Python package
/// gguf 0.19.0 has it (gguf.quants). A block of 32 or 256 elements has one or more scales:
///   Q8_0  fp16 d; 32 int8: d q                   Q4_0  fp16 d; 16 bytes: d (q - 8)
///   Q4_1  fp16 d, m; 16 bytes: d q + m           (low nibbles first, then high ones)
///   Q5_0, Q5_1  as Q4_0 and Q4_1, with 4 bytes of fifth bits before the others: d (q - 16), d q +
///   m MXFP4 exponent e; 16 bytes of e2m1, low nibbles first, then high ones: 2^(e - 127) q Q4_K
///   fp16 d, m; 8 6-bit scales and minima; 128 bytes: (d scale) q - (m min) Q5_K  as Q4_K, with 32
///   bytes of fifth bits before the others Q2_K  16 bytes of 4-bit scales and minima; 64 bytes;
///   fp16 d, m: (d scale) q - (m min) Q3_K  32 bytes of third bits; 64 bytes; 16 6-bit scales; fp16
///   d: d (scale - 32) (q - 4) IQ4_NL  fp16 d; 16 bytes that choose from 16 values: d value IQ4_XS
///   fp16 d; 8 6-bit scales; 128 such bytes: d (scale - 32) value Q6_K  128 + 64 bytes of 6-bit
///   values; 16 int8 scales; fp16 d: (d scale) (q - 32)
/// Source: https://github.com/ggml-org/ggml, ggml-quants.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pentatron/base/gguf.h"

namespace pentatron::checkpoint {

/// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS,
/// MXFP4.
bool can_dequantize(GgmlType type);
/// F32, F16, BF16, Q8_0, Q4_K, Q6_K.
bool can_quantize(GgmlType type);

/// Whole blocks: blocks.size() is their bytes and values.size() their elements. BF16 and F16 round
/// to nearest, ties to even.
void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);
void quantize(GgmlType type, std::span<const float> values, std::span<std::byte> blocks);

/// Index of the first value that quantize() cannot represent: for quantised types a value that is
/// not finite or too large; for other types a finite value that is rounded to infinity;
/// values.size() if all can be represented.
size_t first_lost(GgmlType type, std::span<const float> values);

float float_of_half(uint16_t bits);
uint16_t half_of_float(float value);
uint16_t bfloat_of_float(float value);

} // namespace pentatron::checkpoint

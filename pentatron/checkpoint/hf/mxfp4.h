/// MXFP4 weights, as the files of GPT-OSS have them: 4-bit floating-point numbers (e2m1) with a
/// power of two for each 32 in a row.
///
/// Shapes: blocks [experts, rows, columns / 32, 16], two numbers a byte, the first one in the low
/// half; scales [experts, rows, columns / 32], exponents plus 127. Both are of type U8.
/// Source: OCP Microscaling Formats (MX) Specification 1.0, sec. 5; convert_moe_packed_tensors of
/// transformers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/base/safetensors.h"

namespace pentatron::checkpoint {

/// [experts, rows, columns] in bf16, which holds all values.
at::Tensor dequantize_mxfp4(const SafeTensor& blocks, const SafeTensor& scales);

/// Why the two are not a tensor of shape [experts, rows, columns]; empty: they are.
std::string mxfp4_misfit(const SafeTensor& blocks, const SafeTensor& scales,
                         const std::vector<int64_t>& shape);

} // namespace pentatron::checkpoint

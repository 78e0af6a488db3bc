/// Operands of scaled FP8 products on GPUs: a tensor as codes and one scale, which never leave the
/// device. The numbers are those of the tensorwise recipes (recipe.h), to the bit.
///
/// x [rows, cols] row-major and packed; codes [rows, stride], transposed [cols, stride], with zeros
/// after the last column: products sum along a multiple of 16. amax and scale are one fp32 number
/// each, in the memory of the device.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::kernels {

/// amax = max(amax, |x|) in fp32; NaN is ignored.
struct RaiseAmax {
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  const void* x = nullptr;
  float* amax = nullptr; ///< >= 0
};
void raise_amax(const RaiseAmax& args, const Context& context = {});

struct Fp8Codes {
  QuantRecipe recipe = QuantRecipe::kTensorwiseE4m3;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  bool transposed = false;
  int64_t stride = 0; ///< of a row of codes
  const void* x = nullptr;
  const float* amax = nullptr;
  uint8_t* codes = nullptr;
  float* scale = nullptr; ///< a value is code times scale
};
/// Throws ShapeError if a size is negative, a row of codes does not fit into `stride`, or for a
/// recipe with blocks.
void fp8_codes(const Fp8Codes& args, const Context& context = {});

std::span<const Entry<RaiseAmax>> raise_amax_entries();
std::span<const Entry<Fp8Codes>> fp8_codes_entries();

} // namespace pentatron::kernels

#include "pentatron/nn/ops/scaled_products.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/fp8_blocks.h"
#include "pentatron/kernels/quantize/fp8_codes.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::nn {

namespace {

void raise_amax(const at::Tensor& x, float* amax) {
  kernels::raise_amax(
      {.dtype = kernel_dtype(x.scalar_type()), .n = x.numel(), .x = x.data_ptr(), .amax = amax},
      KernelContext(x));
}

int64_t filled(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

/// cuBLASLt reads scales of rows, and of blocks in a row, by 16 bytes.
constexpr int64_t kScalesAtOnce = 4;
constexpr int64_t kBlockSize = 128;

QuantizedValues block_codes(const at::Tensor& x, kernels::QuantRecipe recipe, bool along_rows) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const int64_t out_rows = along_rows ? cols : rows, room = filled(out_rows, kScalesAtOnce),
                stride = along_rows ? filled(rows, kScaledProductSize) : cols,
                along = (stride + kBlockSize - 1) / kBlockSize;
  const bool square = recipe == kernels::QuantRecipe::kBlockwise128x128;
  // Rows that are filled up have any codes: what a product makes of them is dropped.
  const int64_t scale_stride = square ? filled(along, kScalesAtOnce) : room;
  const at::Tensor scales =
      at::zeros({square ? (out_rows + kBlockSize - 1) / kBlockSize : along, scale_stride},
                x.options().dtype(at::kFloat));
  QuantizedValues result = {.values =
                                at::empty({room, stride}, x.options().dtype(at::kFloat8_e4m3fn)),
                            .device_scale = scales.t(),
                            .square_blocks = square};
  kernels::fp8_blocks({.recipe = recipe,
                       .dtype = kernel_dtype(x.scalar_type()),
                       .rows = rows,
                       .cols = cols,
                       .transposed = along_rows,
                       .stride = stride,
                       .x = x.data_ptr(),
                       .codes = static_cast<uint8_t*>(result.values.data_ptr()),
                       .scales = scales.data_ptr<float>(),
                       .scale_stride = scale_stride},
                      KernelContext(x));
  return result;
}

/// The values that codes with scales of blocks stand for, in fp32.
at::Tensor dequantized(const QuantizedValues& codes) {
  const int64_t rows = codes.values.size(0), cols = codes.values.size(1);
  const at::Tensor scales =
      (codes.square_blocks ? codes.device_scale.t().repeat_interleave(kBlockSize, 0)
                           : codes.device_scale)
          .narrow(0, 0, rows)
          .repeat_interleave(kBlockSize, 1)
          .narrow(1, 0, cols);
  return codes.values.to(at::kFloat) * scales;
}

/// out [m, n] = a b^T, of codes with scales of blocks; m may be filled up.
void block_product_into(at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b) {
  if (out.is_cpu()) {
    out.copy_(at::mm(dequantized(a), dequantized(b).t()));
    return;
  }
  const auto recipe = [](const QuantizedValues& codes) {
    return static_cast<int64_t>(codes.square_blocks ? at::blas::ScalingType::BlockWise128x128
                                                    : at::blas::ScalingType::BlockWise1x128);
  };
  constexpr auto kAsTheyLie = static_cast<int64_t>(at::blas::SwizzleType::NO_SWIZZLE);
  at::_scaled_mm_v2_out(out, a.values, b.values.t(), a.device_scale, recipe(a), kAsTheyLie,
                        b.device_scale, recipe(b), kAsTheyLie, {}, out.scalar_type());
}

} // namespace

void see_on_device(const at::Tensor& x, Operand operand, const LowPrecision& how) {
  if (how.delayed == nullptr || !how.delayed->wants(operand)) return;
  raise_amax(x.contiguous(), how.delayed->see_on_device(operand));
}

QuantizedValues scaled_codes(const at::Tensor& x_in, Operand operand, const LowPrecision& how,
                             bool along_rows) {
  PT_DCHECK(!how.hadamard && !how.stochastic);
  const at::Tensor x = x_in.contiguous();
  const kernels::QuantRecipe recipe = how.recipe(operand);
  if (!kernels::traits(recipe).tensorwise()) return block_codes(x, recipe, along_rows);
  const at::TensorOptions scalar = x.options().dtype(at::kFloat);
  at::Tensor amax;
  if (how.delayed != nullptr) {
    see_on_device(x, operand, how);
    amax = at::full({}, how.delayed->amax(operand), scalar);
  } else {
    amax = at::zeros({}, scalar);
    raise_amax(x, amax.data_ptr<float>());
  }
  const int64_t rows = x.size(0), cols = x.size(1),
                stride = along_rows ? filled(rows, kScaledProductSize) : cols;
  const bool e5m2 = recipe == kernels::QuantRecipe::kTensorwiseE5m2;
  QuantizedValues result = {
      .values = at::empty({along_rows ? cols : rows, stride},
                          x.options().dtype(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn)),
      .device_scale = at::empty({}, scalar)};
  kernels::fp8_codes({.recipe = recipe,
                      .dtype = kernel_dtype(x.scalar_type()),
                      .rows = rows,
                      .cols = cols,
                      .transposed = along_rows,
                      .stride = stride,
                      .x = x.data_ptr(),
                      .amax = amax.const_data_ptr<float>(),
                      .codes = static_cast<uint8_t*>(result.values.data_ptr()),
                      .scale = result.device_scale.data_ptr<float>()},
                     KernelContext(x));
  return result;
}

void scaled_product_into(const at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b,
                         const at::Tensor& bias, bool exact) {
  if (out.numel() == 0) return;
  const bool blocks = a.device_scale.dim() == 2, fits = a.values.size(0) == out.size(0);
  // cuBLASLt adds biases of 16 bits, after products with one scale.
  const bool adds = bias.defined() && !blocks && bias.scalar_type() == out.scalar_type() &&
                    bias.scalar_type() != at::kFloat;
  at::Tensor target =
      out.is_contiguous() && fits ? out : at::empty({a.values.size(0), out.size(1)}, out.options());
  if (a.values.size(1) == 0) {
    target.zero_();
    if (adds) target.add_(bias);
  } else if (blocks) {
    block_product_into(target, a, b);
  } else {
    at::_scaled_mm_out(target, a.values, b.values.t(), a.device_scale, b.device_scale,
                       adds ? std::optional(bias) : std::nullopt, {}, out.scalar_type(), !exact);
  }
  const at::Tensor rows = fits ? target : target.narrow(0, 0, out.size(0));
  if (bias.defined() && !adds) at::Tensor(rows).add_(bias);
  if (!target.is_same(out)) at::Tensor(out).copy_(rows);
}

void add_scaled_product(const at::Tensor& grad, const QuantizedValues& a, const QuantizedValues& b,
                        bool empty) {
  if (empty) return scaled_product_into(grad, a, b, {}, true);
  const at::Tensor product = at::empty(grad.sizes(), grad.options());
  scaled_product_into(product, a, b, {}, true);
  at::Tensor(grad).add_(product);
}

} // namespace pentatron::nn

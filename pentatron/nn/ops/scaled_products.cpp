#include "pentatron/nn/ops/scaled_products.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/fp8_blocks.h"
#include "pentatron/kernels/quantize/fp8_codes.h"
#include "pentatron/kernels/quantize/tiled_blocks.h"
#include "pentatron/nn/host_copies.h"
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

/// What sizes are multiples of, but in MXFP8 and NVFP4.
constexpr int64_t kPlainSize = 16;
/// cuBLASLt reads scales of rows, and of blocks in a row, by 16 bytes.
constexpr int64_t kScalesAtOnce = 4;
constexpr int64_t kBlockSize = 128;

QuantizedValues block_codes(const at::Tensor& x, kernels::QuantRecipe recipe, bool along_rows) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const int64_t out_rows = along_rows ? cols : rows, room = filled(out_rows, kScalesAtOnce),
                stride = along_rows ? filled(rows, kPlainSize) : cols,
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

/// Where random numbers of a gradient's elements come from, on its device.
class DeviceAddresses {
 public:
  DeviceAddresses(const at::Tensor& x, const StochasticGradients& s, bool along_rows,
                  int64_t tokens)
      : rows_((s.rows != nullptr ? *s.rows : GradientRows())
                  .device_ids(tokens, x.size(0), x.device())),
        cols_(features(x, s)), rounding_{.key = along_rows ? s.weight_key : s.input_key,
                                         .row_ids = rows_.const_data_ptr<int64_t>(),
                                         .col_ids =
                                             static_cast<const int64_t*>(data_or_null(cols_))} {}
  const kernels::Stochastic* rounding() const { return &rounding_; }

 private:
  static at::Tensor features(const at::Tensor& x, const StochasticGradients& s) {
    if (std::ssize(s.features) != x.size(1)) return {};
    return s.device_features.defined() ? s.device_features
                                       : to_device(at::tensor(s.features), x.device());
  }

  at::Tensor rows_, cols_;
  kernels::Stochastic rounding_;
};

/// Numbers that share a scale in MXFP8, and in NVFP4.
constexpr int64_t kMxBlock = 32, kNvBlock = 16;

QuantizedValues tile_codes(const at::Tensor& x, Operand operand, const LowPrecision& how,
                           bool along_rows, int64_t tokens) {
  const kernels::QuantRecipe recipe = how.recipe(operand);
  const bool fp4 = kernels::traits(recipe).two_levels();
  const int64_t rows = x.size(0), cols = x.size(1),
                stride = filled(along_rows ? rows : cols, kernels::kTiledStride),
                out_rows = along_rows ? cols : rows;
  const at::TensorOptions bytes = x.options().dtype(at::kByte),
                          scalar = x.options().dtype(at::kFloat);
  // As bytes first: deterministic LibTorch fills new memory, which it cannot in every type.
  QuantizedValues result = {
      .values = at::empty({out_rows, fp4 ? stride / 2 : stride}, bytes)
                    .view(fp4 ? at::kFloat4_e2m1fn_x2 : at::kFloat8_e4m3fn),
      .device_scale = at::empty({kernels::scale_tiles(recipe, out_rows, stride).bytes()}, bytes)
                          .view(fp4 ? at::kFloat8_e4m3fn : at::kFloat8_e8m0fnu)};
  at::Tensor amax;
  if (fp4) {
    result.device_tensor_scale = at::empty({}, scalar);
    amax = at::zeros({}, scalar);
    raise_amax(x, amax.data_ptr<float>());
  }
  std::optional<DeviceAddresses> addresses;
  if (how.stochastic && operand == Operand::kGradient)
    addresses.emplace(x, *how.stochastic, along_rows, tokens);
  kernels::tiled_blocks(
      {.recipe = recipe,
       .dtype = kernel_dtype(x.scalar_type()),
       .rows = rows,
       .cols = cols,
       .transposed = along_rows,
       .stride = stride,
       .x = x.data_ptr(),
       .amax = static_cast<const float*>(data_or_null(amax)),
       .stochastic = addresses ? addresses->rounding() : nullptr,
       .codes = static_cast<uint8_t*>(result.values.data_ptr()),
       .scales = static_cast<uint8_t*>(result.device_scale.data_ptr()),
       .tensor_scale = static_cast<float*>(data_or_null(result.device_tensor_scale))},
      KernelContext(x));
  return result;
}

/// The values of codes with scales in tiles, in fp32.
at::Tensor dequantized_tiles(const QuantizedValues& codes) {
  const bool fp4 = codes.device_tensor_scale.defined();
  const at::Tensor bytes = codes.values.view(at::kByte);
  at::Tensor numbers;
  if (fp4) {
    const at::Tensor table = at::empty({16}, at::kFloat);
    for (uint8_t code = 0; code < 16; ++code)
      table.data_ptr<float>()[code] = kernels::value_of(kernels::kE2M1, code);
    const at::Tensor pairs =
        at::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, 2).flatten(1);
    numbers = table.index_select(0, pairs.flatten().to(at::kLong)).view(pairs.sizes());
  } else {
    numbers = codes.values.to(at::kFloat);
  }
  const int64_t rows = numbers.size(0), cols = numbers.size(1), block = fp4 ? kNvBlock : kMxBlock,
                down = (rows + 127) / 128, across = codes.device_scale.numel() / down / 512;
  // A tile: 32 rows of four groups of rows with four blocks.
  const at::Tensor scales = codes.device_scale.view(at::kByte)
                                .view({down, across, 32, 4, 4})
                                .permute({0, 3, 2, 1, 4})
                                .reshape({down * 128, across * 4})
                                .view(codes.device_scale.scalar_type())
                                .to(at::kFloat)
                                .narrow(0, 0, rows)
                                .repeat_interleave(block, 1)
                                .narrow(1, 0, cols);
  const at::Tensor values = numbers * scales;
  return fp4 ? values * codes.device_tensor_scale : values;
}

/// out [m, n] = a b^T, of codes with scales in tiles.
void tile_product_into(at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b) {
  using at::blas::ScalingType, at::blas::SwizzleType;
  constexpr auto number = [](auto kind) { return static_cast<int64_t>(kind); };
  std::vector<at::Tensor> of_a = {a.device_scale}, of_b = {b.device_scale};
  std::vector<int64_t> recipe = {number(ScalingType::BlockWise1x32)},
                       order = {number(SwizzleType::SWIZZLE_32_4_4)};
  if (a.device_tensor_scale.defined()) {
    of_a.push_back(a.device_tensor_scale);
    of_b.push_back(b.device_tensor_scale);
    recipe = {number(ScalingType::BlockWise1x16), number(ScalingType::TensorWise)};
    order.push_back(number(SwizzleType::NO_SWIZZLE));
  }
  at::_scaled_mm_v2_out(out, a.values, b.values.t(), of_a, recipe, order, of_b, recipe, order, {},
                        out.scalar_type());
}

/// The values that codes with scales of blocks stand for, in fp32.
at::Tensor dequantized(const QuantizedValues& codes) {
  if (codes.device_scale.dim() == 1) return dequantized_tiles(codes);
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
  if (a.device_scale.dim() == 1) return tile_product_into(out, a, b);
  const auto recipe = [](const QuantizedValues& codes) {
    return static_cast<int64_t>(codes.square_blocks ? at::blas::ScalingType::BlockWise128x128
                                                    : at::blas::ScalingType::BlockWise1x128);
  };
  constexpr auto kAsTheyLie = static_cast<int64_t>(at::blas::SwizzleType::NO_SWIZZLE);
  at::_scaled_mm_v2_out(out, a.values, b.values.t(), a.device_scale, recipe(a), kAsTheyLie,
                        b.device_scale, recipe(b), kAsTheyLie, {}, out.scalar_type());
}

} // namespace

int64_t scaled_product_size(kernels::QuantRecipe recipe) {
  const kernels::ScaleFormat scale = kernels::traits(recipe).scale;
  return scale == kernels::ScaleFormat::kE8M0 || scale == kernels::ScaleFormat::kE4M3
             ? kernels::kTiledStride
             : kPlainSize;
}

void see_on_device(const at::Tensor& x, Operand operand, const LowPrecision& how) {
  if (how.delayed == nullptr || !how.delayed->wants(operand)) return;
  raise_amax(x.contiguous(), how.delayed->see_on_device(operand));
}

QuantizedValues scaled_codes(const at::Tensor& x_in, Operand operand, const LowPrecision& how,
                             bool along_rows, int64_t tokens) {
  const at::Tensor x = x_in.contiguous();
  const kernels::QuantRecipe recipe = how.recipe(operand);
  if (scaled_product_size(recipe) == kernels::kTiledStride)
    return tile_codes(x, operand, how, along_rows, tokens);
  PT_DCHECK(!how.stochastic && tokens == x.size(0));
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
                stride = along_rows ? filled(rows, kPlainSize) : cols;
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
  const bool blocks = a.device_scale.dim() > 0, fits = a.values.size(0) == out.size(0);
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

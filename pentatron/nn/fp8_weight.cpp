#include "pentatron/nn/fp8_weight.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::nn {

namespace {

using kernels::QuantRecipe;

/// Elements that one thread takes at a time.
constexpr int64_t kGrain = 1 << 16;

struct Regions {
  int64_t rows = 0, cols = 0;             ///< of a matrix
  int64_t block_rows = 0, block_cols = 0; ///< of a region

  Regions(QuantRecipe recipe, const std::vector<int64_t>& shape)
      : rows(shape[shape.size() - 2]), cols(shape.back()) {
    const kernels::RecipeTraits& traits = kernels::traits(recipe);
    block_rows = traits.tensorwise() ? std::max<int64_t>(1, rows) : traits.block_rows;
    block_cols = traits.tensorwise() ? std::max<int64_t>(1, cols) : traits.block_cols;
  }
  int64_t down() const { return (rows + block_rows - 1) / block_rows; }
  int64_t across() const { return (cols + block_cols - 1) / block_cols; }
  int64_t each() const { return down() * across(); } ///< of a matrix

  /// Calls fn(region, offset, n) for the parts of elements [begin, begin + size) that lie in one
  /// region and one row, or in one matrix where that is the region.
  template <class Fn> void parts(int64_t begin, int64_t size, Fn&& fn) const {
    const bool whole = each() == 1;
    for (int64_t at = 0; at < size;) {
      const int64_t element = begin + at, matrix = element / (rows * cols),
                    inside = element % (rows * cols), row = inside / cols, col = inside % cols;
      const int64_t left =
          whole ? rows * cols - inside : std::min(cols, (col / block_cols + 1) * block_cols) - col;
      const int64_t n = std::min(left, size - at);
      fn(matrix * each() + row / block_rows * across() + col / block_cols, at, n);
      at += n;
    }
  }
};

const uint8_t* address(const at::Tensor& values, int64_t offset) {
  return static_cast<const uint8_t*>(values.const_data_ptr()) +
         offset * static_cast<int64_t>(values.element_size());
}

} // namespace

bool Fp8Weight::supports(QuantRecipe recipe) {
  return recipe == QuantRecipe::kTensorwiseE4m3 || recipe == QuantRecipe::kBlockwise128x128;
}

int64_t Fp8Weight::num_regions(QuantRecipe recipe, const std::vector<int64_t>& shape) {
  return (shape.size() == 3 ? shape.front() : 1) * Regions(recipe, shape).each();
}

void Fp8Weight::add_amax(QuantRecipe recipe, const std::vector<int64_t>& shape, int64_t begin,
                         const at::Tensor& values, float* amax) {
  const kernels::DType type = kernel_dtype(values.scalar_type());
  Regions(recipe, shape).parts(begin, values.numel(), [&](int64_t region, int64_t at, int64_t n) {
    amax[region] = std::max(amax[region], kernels::largest_size(type, n, address(values, at)));
  });
}

void Fp8Weight::encode(QuantRecipe recipe, const std::vector<int64_t>& shape, int64_t begin,
                       const at::Tensor& values, const float* amax, uint8_t* codes) {
  const kernels::DType type = kernel_dtype(values.scalar_type());
  const kernels::RecipeTraits& traits = kernels::traits(recipe);
  const Regions regions(recipe, shape);
  at::parallel_for(0, values.numel(), kGrain, [&](int64_t first, int64_t last) {
    regions.parts(begin + first, last - first, [&](int64_t region, int64_t at, int64_t n) {
      // The scale of a block is a power of two: as that of a tensor with this amax.
      const float whole = traits.tensorwise()
                              ? amax[region]
                              : traits.code.largest * block_scale(traits, amax[region], 0).decode;
      kernels::quantize({.recipe = QuantRecipe::kTensorwiseE4m3,
                         .dtype = type,
                         .rows = 1,
                         .cols = n,
                         .x = address(values, first + at),
                         .amax = &whole,
                         .codes = codes + first + at});
    });
  });
}

Fp8Weight::Fp8Weight(QuantRecipe recipe, at::Tensor codes, at::Tensor amax)
    : recipe_(recipe), amax_(std::move(amax)), shape_(codes.sizes().vec()) {
  PT_DCHECK(supports(recipe) && amax_.numel() == num_regions(recipe, shape_));
  codes_ = shape_.size() == 3 ? std::move(codes) : codes.unsqueeze(0);
}

kernels::BlockScale Fp8Weight::scale_of(int64_t region) const {
  return block_scale(kernels::traits(recipe_), amax_.const_data_ptr<float>()[region], 0);
}

QuantizedValues Fp8Weight::matrix(int64_t index, at::ScalarType type) const {
  QuantizedValues result = {codes_.select(0, index).view(at::kFloat8_e4m3fn).to(type)};
  const Regions regions(recipe_, shape_);
  const int64_t first = index * regions.each();
  if (kernels::traits(recipe_).tensorwise()) {
    result.scale = scale_of(first).decode;
    return result;
  }
  for (int64_t down = 0; down < regions.down(); ++down) {
    const at::Tensor scales = at::empty({regions.across() * regions.block_cols}, at::kFloat);
    for (int64_t across = 0; across < regions.across(); ++across)
      scales.narrow(0, across * regions.block_cols, regions.block_cols)
          .fill_(scale_of(first + down * regions.across() + across).decode);
    const int64_t row = down * regions.block_rows;
    result.values.narrow(0, row, std::min(regions.block_rows, regions.rows - row))
        .mul_(scales.narrow(0, 0, regions.cols).to(type));
  }
  return result;
}

at::Tensor Fp8Weight::dense(at::ScalarType type) const {
  const at::Tensor all = at::empty(codes_.sizes(), codes_.options().dtype(type));
  for (int64_t i = 0; i < codes_.size(0); ++i) {
    const QuantizedValues one = matrix(i, type);
    all.select(0, i).copy_(one.scale == 1 ? one.values : one.values * one.scale);
  }
  return all.view(shape_);
}

} // namespace pentatron::nn

#include "pentatron/nn/int8_weight.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::nn {

namespace {

constexpr double kLargestCode = 127;
constexpr int64_t kElements = int64_t{1} << 22; // that are quantised at a time

} // namespace

int64_t Int8Weight::block_of(int64_t all_columns) {
  int64_t block = std::min(kLargestBlock, all_columns);
  while (all_columns % block != 0) --block;
  return block;
}

Int8Weight::Int8Weight(const at::Tensor& values, int64_t block) {
  const at::Tensor rows = values.reshape({-1, values.size(-1) / block, block});
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    codes_ = at::empty(rows.sizes(), values.options().dtype(at::kChar));
    scales_ = at::empty({rows.size(0), rows.size(1), 1}, values.options().dtype(at::kBFloat16));
  }
  const int64_t step = std::max<int64_t>(1, kElements / (rows.size(1) * block));
  for (int64_t first = 0; first < rows.size(0); first += step) {
    const int64_t count = std::min(step, rows.size(0) - first);
    const at::Tensor part = rows.narrow(0, first, count).to(at::kDouble);
    const at::Tensor scale = scales_.narrow(0, first, count);
    scale.copy_(part.abs().amax(-1, true) / kLargestCode);
    // By the rounded scale; where that is smaller, the largest code is still 127.
    const at::Tensor divisor = at::where(scale == 0, at::ones_like(scale), scale).to(at::kDouble);
    codes_.narrow(0, first, count)
        .copy_((part / divisor).round().clamp(-kLargestCode, kLargestCode));
  }
}

at::Tensor Int8Weight::rows(int64_t first, int64_t count, at::ScalarType dtype) const {
  const at::Tensor scale = scales_.narrow(0, first, count).to(dtype);
  return at::mul(codes_.narrow(0, first, count), scale).flatten(1);
}

} // namespace pentatron::nn

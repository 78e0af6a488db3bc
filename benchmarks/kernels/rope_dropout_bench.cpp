#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/base/philox.h"
#include "pentatron/kernels/dropout/dropout.h"
#include "pentatron/kernels/rope/rope.h"
#include "pentatron/kernels/rope/rope_frequencies.h"

namespace pentatron::bench {

namespace {

/// torch: Hugging Face's x * cos + rotate_half(x) * sin with tables that are ready.
void rope(benchmark::State& state, at::ScalarType type) {
  const int64_t tokens = state.range(0), heads = state.range(1), head_size = state.range(2);
  const at::Tensor x = at::randn({tokens, heads, head_size}).to(type), y = at::empty_like(x);
  const auto tables = kernels::rope_tables({.rotary_dim = head_size}, tokens);
  const std::vector<float> cos(tables.cos.begin(), tables.cos.end()),
      sin(tables.sin.begin(), tables.sin.end());
  std::vector<int32_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  const at::Tensor cos_t = at::randn({tokens, 1, head_size}).to(type),
                   sin_t = at::randn({tokens, 1, head_size}).to(type);
  const kernels::Rope args{.dtype = dtype_of(x),
                           .tokens = tokens,
                           .heads = heads,
                           .head_size = head_size,
                           .rotary_dim = head_size,
                           .x = x.data_ptr(),
                           .y = y.data_ptr(),
                           .cos = cos.data(),
                           .sin = sin.data(),
                           .max_position = tokens,
                           .positions = positions.data()};
  const double bytes = 2.0 * static_cast<double>(x.numel() * x.element_size());
  beside_torch(
      state, bytes, [&] { kernels::rope(args); },
      [&] {
        const at::Tensor turned =
            at::cat({-x.slice(-1, head_size / 2), x.slice(-1, 0, head_size / 2)}, -1);
        const at::Tensor rotated = x * cos_t + turned * sin_t;
      });
}

void dropout(benchmark::State& state, at::ScalarType type) {
  const int64_t rows = state.range(0), cols = state.range(1);
  const at::Tensor x = at::randn({rows, cols}).to(type), y = at::empty_like(x);
  const kernels::Dropout args{.dtype = dtype_of(x),
                              .rows = rows,
                              .cols = cols,
                              .x = x.data_ptr(),
                              .y = y.data_ptr(),
                              .p = 0.1,
                              .key = Stream(1, "dropout").key()};
  const double bytes = 2.0 * static_cast<double>(x.numel() * x.element_size());
  beside_torch(
      state, bytes, [&] { kernels::dropout(args); }, [&] { at::dropout(x, 0.1, true); });
}

BENCHMARK_CAPTURE(rope, fp32, at::kFloat)
    ->Args({2048, 8, 64})
    ->Args({1024, 32, 128})
    ->UseManualTime();
BENCHMARK_CAPTURE(rope, bf16, at::kBFloat16)
    ->Args({2048, 8, 64})
    ->Args({1024, 32, 128})
    ->UseManualTime();
BENCHMARK_CAPTURE(dropout, fp32, at::kFloat)
    ->Args({1024, 768})
    ->Args({2048, 4096})
    ->UseManualTime();
BENCHMARK_CAPTURE(dropout, bf16, at::kBFloat16)
    ->Args({1024, 768})
    ->Args({2048, 4096})
    ->UseManualTime();

} // namespace

} // namespace pentatron::bench

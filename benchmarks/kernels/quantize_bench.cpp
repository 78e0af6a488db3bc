#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/base/philox.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/quantize/hadamard.h"
#include "pentatron/kernels/quantize/quantize.h"

namespace pentatron::bench {

namespace {

enum class Peer { kTensor, kBlocks, kFp4, kFp4ByChance };

/// The same values by LibTorch's operators, from x [rows, cols] in fp32 to bf16.
at::Tensor by_torch(const at::Tensor& x, Peer peer, int64_t block) {
  if (peer == Peer::kTensor) {
    const at::Tensor encode = 448 / x.abs().amax();
    return (x * encode).to(at::kFloat8_e4m3fn).to(at::kBFloat16);
  }
  const at::Tensor blocks = x.view({x.size(0), -1, block});
  const at::Tensor amax = blocks.abs().amax({-1}, true);
  if (peer == Peer::kBlocks) {
    const at::Tensor encode = (448 / amax).log2().floor().exp2();
    return ((blocks * encode).to(at::kFloat8_e4m3fn).to(at::kFloat) / encode).to(at::kBFloat16);
  }
  // LibTorch has no cast to e2m1: a step of 0.5, 1 or 2 by the size.
  const at::Tensor encode = 2688 / x.abs().amax();
  const at::Tensor scale = (amax * encode / 6).to(at::kFloat8_e4m3fn).to(at::kFloat);
  const at::Tensor y = at::clamp(blocks * encode / scale, -6, 6);
  const at::Tensor step = at::clamp(y.abs().log2().floor(), 0, 2).exp2() * 0.5;
  const at::Tensor steps =
      peer == Peer::kFp4 ? (y / step).round() : (y / step + at::rand(y.sizes())).floor();
  return (steps * step * scale).to(at::kBFloat16);
}

void quantize(benchmark::State& state, kernels::QuantRecipe recipe, bool along_rows, Peer peer) {
  const int64_t rows = state.range(0), cols = state.range(1);
  const at::Tensor x = at::randn({rows, cols}), values = at::empty({rows, cols}, at::kBFloat16);
  const kernels::Stochastic chance{.key = Stream(1, "rounding").key()};
  const kernels::Quantize args{.recipe = recipe,
                               .dtype = dtype_of(x),
                               .rows = rows,
                               .cols = cols,
                               .along_rows = along_rows,
                               .x = x.data_ptr(),
                               .stochastic = peer == Peer::kFp4ByChance ? &chance : nullptr,
                               .values = values.data_ptr(),
                               .values_dtype = kernels::DType::kBFloat16};
  const at::Tensor transposed = along_rows ? x.t().contiguous() : x;
  beside_torch(
      state, 6.0 * static_cast<double>(x.numel()), [&] { kernels::quantize(args); },
      [&] { by_torch(transposed, peer, kernels::traits(recipe).block_cols); });
}

/// The same bytes without arithmetic: what quantising could reach.
void as_bf16(benchmark::State& state) {
  const int64_t n = state.range(0) * state.range(1);
  const at::Tensor x = at::randn({n}), values = at::empty({n}, at::kBFloat16);
  beside_torch(
      state, 6.0 * static_cast<double>(n),
      [&] { kernels::cast({.n = n, .x = x.data_ptr(), .out = values.data_ptr()}); },
      [&] { values.copy_(x); });
}

/// torch: a product with the matrix of 16.
void hadamard(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1);
  const at::Tensor x = at::randn({rows, cols}), y = at::empty({rows, cols}),
                   matrix = at::randn({16, 16});
  const kernels::Hadamard args{
      .dtype = dtype_of(x), .rows = rows, .cols = cols, .x = x.data_ptr(), .out = y.data_ptr()};
  beside_torch(
      state, 8.0 * static_cast<double>(x.numel()), [&] { kernels::hadamard(args); },
      [&] {
        at::matmul(matrix, x.view({rows / 16, 16, cols}));
      });
}

#define ROWS Args({2048, 1024})->Args({8192, 4096})->UseManualTime()
BENCHMARK_CAPTURE(quantize, tensorwise, kernels::QuantRecipe::kTensorwiseE4m3, false, Peer::kTensor)
    ->ROWS;
BENCHMARK_CAPTURE(quantize, blockwise, kernels::QuantRecipe::kBlockwise1x128, false, Peer::kBlocks)
    ->ROWS;
BENCHMARK_CAPTURE(quantize, mxfp8, kernels::QuantRecipe::kMxfp8, false, Peer::kBlocks)->ROWS;
BENCHMARK_CAPTURE(quantize, mxfp8_along_rows, kernels::QuantRecipe::kMxfp8, true, Peer::kBlocks)
    ->ROWS;
BENCHMARK_CAPTURE(quantize, nvfp4, kernels::QuantRecipe::kNvfp4, false, Peer::kFp4)->ROWS;
BENCHMARK_CAPTURE(quantize, nvfp4_by_chance, kernels::QuantRecipe::kNvfp4, false,
                  Peer::kFp4ByChance)
    ->ROWS;
BENCHMARK_CAPTURE(quantize, nvfp4_by_chance_along_rows, kernels::QuantRecipe::kNvfp4, true,
                  Peer::kFp4ByChance)
    ->ROWS;
BENCHMARK(hadamard)->ROWS;
BENCHMARK(as_bf16)->ROWS;
#undef ROWS

} // namespace

} // namespace pentatron::bench

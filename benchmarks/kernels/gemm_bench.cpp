// GFLOP/s of the three products of a linear layer, against LibTorch's operators in the same
// process.
//
// Both run alternately; the figures are those of the fastest run of each, so that other work on the
// machine matters little. Counters: gflops (ours), torch_gflops, ratio. LibTorch's bf16 operators
// round their result to bf16, also in the weight gradient, where ours adds to fp32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::kernels {
namespace {

enum Product { kForward, kInputGradient, kWeightGradient };

DType dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

GemmArgs arguments(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b,
                   at::Tensor& c, bool accumulate) {
  return {.m = c.size(0),
          .n = c.size(1),
          .k = transpose_a ? a.size(0) : a.size(1),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .in_dtype = dtype_of(a),
          .out_dtype = dtype_of(c),
          .a = a.const_data_ptr(),
          .lda = a.stride(0),
          .b = b.const_data_ptr(),
          .ldb = b.stride(0),
          .c = c.data_ptr(),
          .ldc = c.stride(0),
          .accumulate = accumulate};
}

template <class F> double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(benchmark::State& state, Product product, at::ScalarType type) {
  at::set_num_threads(2);
  const int64_t tokens = state.range(0), in = state.range(1), out = state.range(2);
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor x = at::randn({tokens, in}).to(type), w = at::randn({out, in}).to(type),
                   dy = at::randn({tokens, out}).to(type);
  at::Tensor c, peer;
  GemmArgs args;
  if (product == kForward) {
    c = at::empty({tokens, out}, options);
    args = arguments(x, false, w, true, c, false);
  } else if (product == kInputGradient) {
    c = at::empty({tokens, in}, options);
    args = arguments(dy, false, w, false, c, false);
  } else {
    c = at::zeros({out, in});
    peer = at::zeros({out, in});
    args = arguments(dy, true, x, false, c, true);
  }
  if (!gemm_supported(args)) {
    state.SkipWithError("no fast entry on this processor");
    return;
  }
  const auto ours = [&] { gemm(args); };
  const auto torch = [&] {
    if (product == kForward) {
      benchmark::DoNotOptimize(at::linear(x, w));
    } else if (product == kInputGradient) {
      benchmark::DoNotOptimize(at::mm(dy, w));
    } else if (type == at::kFloat) {
      peer.addmm_(dy.t(), x);
    } else {
      benchmark::DoNotOptimize(at::mm(dy.t(), x));
    }
  };
  ours();
  torch();
  double best = 1e30, best_torch = 1e30;
  for (auto _ : state) {
    const double s = seconds(ours);
    state.SetIterationTime(s);
    best = std::min(best, s);
    best_torch = std::min(best_torch, seconds(torch));
  }
  const double gflop =
      2e-9 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  state.counters["gflops"] = gflop / best;
  state.counters["torch_gflops"] = gflop / best_torch;
  state.counters["ratio"] = best_torch / best;
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1024, 768, 3072},
                                                             {1024, 3072, 768},
                                                             {1024, 768, 2304},
                                                             {1024, 768, 768},
                                                             {512, 768, 50257},
                                                             {2048, 512, 1408},
                                                             {256, 512, 32000},
                                                             {1, 768, 3072},
                                                             {16, 768, 3072}}) {
    b->Args(shape);
  }
  b->ArgNames({"tokens", "in", "out"})
      ->UseManualTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(run, gemm_forward_fp32, kForward, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(run, gemm_input_gradient_fp32, kInputGradient, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(run, gemm_weight_gradient_fp32, kWeightGradient, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(run, gemm_forward_bf16, kForward, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(run, gemm_input_gradient_bf16, kInputGradient, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(run, gemm_weight_gradient_bf16, kWeightGradient, at::kBFloat16)->Apply(shapes);

} // namespace
} // namespace pentatron::kernels

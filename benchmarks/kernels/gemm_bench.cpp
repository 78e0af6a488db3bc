// GFLOP/s of the three products of a linear layer by every entry that this machine has, against
// LibTorch's operators in the same process.
//
// LibTorch's bf16 operators round their result to bf16, also in the weight gradient, where ours
// adds to fp32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/kernels/gemm/gemm.h"

namespace pentatron::bench {
namespace {

using kernels::GemmArgs;

using GemmEntry = kernels::Entry<GemmArgs>;

enum Product { kForward, kInputGradient, kWeightGradient };

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

void run(benchmark::State& state, const GemmEntry& entry, Product product, at::ScalarType type) {
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
  const auto ours = [&] { entry.run(args, {}); };
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
  const double gflop =
      2e-9 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
  beside_torch(state, gflop, "GFLOP/s", ours, torch);
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{1024, 768, 3072},
                                                             {1024, 3072, 768},
                                                             {1024, 768, 2304},
                                                             {1024, 768, 768},
                                                             {512, 768, 50257},
                                                             {1024, 768, 50257},
                                                             {2048, 512, 512},
                                                             {2048, 512, 1024},
                                                             {2048, 512, 1408},
                                                             {2048, 512, 2816},
                                                             {2048, 1408, 512},
                                                             {256, 512, 32000},
                                                             {2048, 512, 32000},
                                                             {512, 512, 2048},
                                                             {512, 1024, 512},
                                                             {1, 768, 3072},
                                                             {16, 768, 3072}}) {
    b->Args(shape);
  }
  b->ArgNames({"tokens", "in", "out"})
      ->UseManualTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMillisecond);
}

/// A row for each entry that does not refuse the types.
bool add_rows(const std::string& name, Product product, at::ScalarType type) {
  GemmArgs types;
  types.in_dtype = type == at::kFloat ? kernels::DType::kFloat32 : kernels::DType::kBFloat16;
  types.out_dtype = product == kWeightGradient ? kernels::DType::kFloat32 : types.in_dtype;
  for (const GemmEntry& entry : kernels::gemm_entries()) {
    if (entry.name == "reference" || !entry.refuse(types, {}).empty()) continue;
    benchmark::RegisterBenchmark(
        (name + "/" + std::string(entry.name)).c_str(),
        [entry, product, type](benchmark::State& state) { run(state, entry, product, type); })
        ->Apply(shapes);
  }
  return true;
}

const bool added = add_rows("gemm_forward_fp32", kForward, at::kFloat) &&
                   add_rows("gemm_input_gradient_fp32", kInputGradient, at::kFloat) &&
                   add_rows("gemm_weight_gradient_fp32", kWeightGradient, at::kFloat) &&
                   add_rows("gemm_forward_bf16", kForward, at::kBFloat16) &&
                   add_rows("gemm_input_gradient_bf16", kInputGradient, at::kBFloat16) &&
                   add_rows("gemm_weight_gradient_bf16", kWeightGradient, at::kBFloat16);

} // namespace
} // namespace pentatron::bench

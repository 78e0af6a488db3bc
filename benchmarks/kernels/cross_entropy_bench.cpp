// Softmax cross-entropy, forward and backward, over a block of logits that a chunk of the output
// layer makes. Bytes counted: the logits read once and the gradient written once.
#include "pentatron/kernels/cross_entropy/cross_entropy.h"

#include "benchmarks/kernels/beside_torch.h"

namespace {

using namespace pentatron;

void cross_entropy_fused(benchmark::State& state, at::ScalarType type, kernels::DType dtype) {
  const int64_t rows = state.range(0), vocab = state.range(1);
  at::manual_seed(1);
  const at::Tensor start = at::randn({rows, vocab}, at::kFloat).to(type);
  const at::Tensor target = at::randint(0, vocab, {rows}, at::kLong);
  at::Tensor logits = start.clone(),
             scale = at::full({rows}, 1.0 / static_cast<double>(rows),
                              type == at::kDouble ? at::kDouble : at::kFloat),
             lse = scale.clone(), loss = scale.clone();
  const auto ours = [&] {
    kernels::cross_entropy({.dtype = dtype,
                            .out_dtype = dtype,
                            .rows = rows,
                            .columns = vocab,
                            .padded_columns = vocab,
                            .row_stride = vocab,
                            .out_row_stride = vocab,
                            .logits = logits.data_ptr(),
                            .target = target.data_ptr<int64_t>(),
                            .row_scale = scale.data_ptr(),
                            .lse = lse.data_ptr(),
                            .loss = loss.data_ptr(),
                            .gradient = logits.data_ptr()});
  };
  at::Tensor leaf = start.clone().set_requires_grad(true);
  const auto torch = [&] {
    leaf.mutable_grad() = at::Tensor();
    at::cross_entropy_loss(leaf, target).backward();
  };
  bench::beside_torch(
      state, 2.0 * static_cast<double>(rows * vocab) * static_cast<double>(start.element_size()),
      ours, torch);
}

BENCHMARK_CAPTURE(cross_entropy_fused, fp32, at::kFloat, kernels::DType::kFloat32)
    ->Args({256, 50304})
    ->Args({256, 32000})
    ->Args({512, 1024})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cross_entropy_fused, bf16, at::kBFloat16, kernels::DType::kBFloat16)
    ->Args({256, 50304})
    ->Args({256, 32000})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(cross_entropy_fused, fp64, at::kDouble, kernels::DType::kFloat64)
    ->Args({64, 50304})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

} // namespace

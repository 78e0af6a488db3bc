// A step of AdamW whose running means are kept in narrow types, beside LibTorch's fused AdamW with
// means in fp32. Bytes counted: what the optimizer keeps, the parameters and the gradients, each
// read, and all but the gradients written.
#include <ATen/ATen.h>

#include "benchmarks/kernels/beside_torch.h"
#include "pentatron/optim/optimizer.h"

namespace {

using namespace pentatron;

constexpr int64_t kRows = 4096, kColumns = 4096;

void adamw_means(benchmark::State& state, optim::StateDtype first, optim::StateDtype second) {
  nn::ParamList params;
  params.add({.name = "weight", .shape = {kRows, kColumns}}, nn::Init::normal(0.02), at::kFloat,
             {});
  const optim::OptimizerConfig config{.exp_avg_dtype = first, .exp_avg_sq_dtype = second};
  optim::plan_rules(params, config);
  nn::ResidentStore store(params, at::kCPU);
  for (nn::Param& param : params) {
    param.initialize(1);
    param.main_grad().copy_(at::randn(param.shape()));
  }
  optim::Optimizer optimizer(config, store.shards());
  const at::Tensor g = at::randn({kRows, kColumns});
  std::vector<at::Tensor> p = {at::randn_like(g)}, grads = {g}, m = {at::zeros_like(g)},
                          v = {at::zeros_like(g)}, step = {at::ones({})};
  double kept = 0;
  optimizer.for_each_state(
      [&](const nn::Shard&, const nn::Piece&, const std::string&, const at::Tensor& data) {
        kept += static_cast<double>(data.nbytes());
      });
  bench::beside_torch(
      state, 2 * kept + 12.0 * static_cast<double>(g.numel()),
      [&] { optimizer.step(1e-3, 0.1, 1); },
      [&] {
        step[0].add_(1);
        at::_fused_adamw_(p, grads, m, v, {}, step, 1e-3, 0.9, 0.999, 0.1, 1e-8, false, false, {},
                          {});
      });
}
#define MEANS(name, first, second)                                                                 \
  BENCHMARK_CAPTURE(adamw_means, name, optim::StateDtype::first, optim::StateDtype::second)        \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMillisecond)
MEANS(fp32, kFp32, kFp32);
MEANS(bf16, kBf16, kBf16);
MEANS(fp16, kFp16, kFp16);
MEANS(fp8, kFp8, kFp8);
MEANS(fp8_and_bf16, kFp8, kBf16);
#undef MEANS

} // namespace

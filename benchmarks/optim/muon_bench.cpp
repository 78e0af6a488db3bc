// A step of Muon over the matrices of a transformer layer, beside the operations of
// torch.optim.Muon. Operations counted: those of five iterations on the smaller side, with whole
// products.
#include <ATen/ATen.h>

#include <algorithm>

#include "benchmarks/kernels/beside_torch.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/optim/optimizer.h"

namespace {

using namespace pentatron;

/// torch.optim.Muon of one matrix (2.11), without Python.
void torch_muon(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& buffer,
                double lr, double momentum, double decay) {
  buffer.lerp_(gradient, 1 - momentum);
  const at::Tensor update = gradient.lerp(buffer, momentum);
  at::Tensor x = update.to(at::kBFloat16);
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x.div_(x.norm().clamp(1e-7));
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, -4.7750, 2.0315), x, 3.4445, 1);
  }
  if (tall) x = x.t();
  param.mul_(1 - lr * decay).add_(x, -lr);
}

double operations(int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(std::min(rows, columns)),
             c = static_cast<double>(std::max(rows, columns));
  return 5 * (4 * r * r * c + 2 * r * r * r);
}

/// GFLOP/s of the fastest product [h, h] x [h, f], by pentatron or LibTorch: the best rate of the
/// iterations if all their products were whole.
double product_rate(int64_t h, int64_t f, at::ScalarType type) {
  const at::Tensor a = at::randn({h, h}).to(type), b = at::randn({h, f}).to(type);
  at::Tensor c = at::empty({h, f}, a.options());
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    best = std::min(best, bench::seconds([&] { nn::multiply_into(c, a, b); }));
    best = std::min(best, bench::seconds([&] { at::mm_out(c, a, b); }));
  }
  return 2e-9 * static_cast<double>(h) * static_cast<double>(h) * static_cast<double>(f) / best;
}

/// q, k, v, the output projection, gate, up and down of a layer of this size.
void muon(benchmark::State& state, bool bf16) {
  const int64_t h = state.range(0), f = state.range(1), kv = h / 4;
  nn::ParamList params;
  const auto add = [&](const char* name, std::vector<int64_t> shape,
                       std::vector<nn::FusedPart> parts) {
    params.add({.name = name, .shape = std::move(shape), .parts = std::move(parts)},
               nn::Init::normal(0.02), at::kFloat, {});
  };
  add("qkv", {h + 2 * kv, h}, {{"q", h, 1}, {"k", kv, 1}, {"v", kv, 1}});
  add("proj", {h, h}, {});
  add("fc1", {2 * f, h}, {{"gate", f, 1}, {"up", f, 1}});
  add("fc2", {h, f}, {});
  const optim::OptimizerConfig config{.optimizer = optim::OptimizerKind::kMuon, .muon_bf16 = bf16};
  optim::plan_rules(params, config);
  nn::ResidentStore store(params, at::kCPU);
  std::vector<at::Tensor> weights, gradients, buffers;
  double work = 0;
  for (nn::Param& param : params) {
    param.initialize(1);
    param.main_grad().copy_(at::randn(param.shape()));
    int64_t begin = 0;
    std::vector<nn::FusedPart> parts = param.spec().parts;
    if (parts.empty()) parts = {{"", param.shape()[0], 1}};
    for (const nn::FusedPart& part : parts) {
      weights.push_back(param.value().narrow(0, begin, part.pieces).clone());
      gradients.push_back(param.main_grad().narrow(0, begin, part.pieces).clone());
      buffers.push_back(at::zeros_like(weights.back()));
      work += operations(part.pieces, param.shape()[1]);
      begin += part.pieces;
    }
  }
  optim::Optimizer optimizer(config, store.shards());
  bench::beside_torch(
      state, 1e-9 * work, "GFLOP/s", [&] { optimizer.step(1e-3, 0.1, 1); },
      [&] {
        for (size_t i = 0; i < weights.size(); ++i)
          torch_muon(weights[i], gradients[i], buffers[i], 1e-3, 0.95, 0.1);
      });
  const double rate = product_rate(h, f, bf16 ? at::kBFloat16 : at::kFloat);
  state.counters["product_GFLOP/s"] = rate;
  state.counters["of_whole_products"] = state.counters["GFLOP/s"] / rate;
}
BENCHMARK_CAPTURE(muon, fp32, false)
    ->Args({512, 1408})
    ->Args({1024, 2816})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(muon, bf16, true)
    ->Args({512, 1408})
    ->Args({1024, 2816})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

} // namespace

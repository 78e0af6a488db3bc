// Passes over flat buffers that do not fit a cache. Bytes counted: every buffer read or written,
// once.
#include "pentatron/kernels/optimizer/optimizer.h"

#include "benchmarks/kernels/beside_torch.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/narrow.h"

namespace {

using namespace pentatron;
using kernels::DType;

constexpr int64_t kElements = int64_t{1} << 25;
constexpr auto kN = static_cast<double>(kElements);

/// AdamW on fp32, with or without the bf16 copy of the parameters; torch: its fused kernel (and
/// copy_).
void adamw(benchmark::State& state, bool copy) {
  const at::Tensor g = at::randn({kElements});
  at::Tensor p = at::randn({kElements}), m = at::zeros({kElements}), v = at::zeros({kElements});
  at::Tensor half = at::zeros({copy ? kElements : 0}, at::kBFloat16), torch_half = half.clone();
  std::vector<at::Tensor> tp = {p.clone()}, tg = {g}, tm = {m.clone()}, tv = {v.clone()},
                          step = {at::ones({})};
  kernels::AdamWArgs a{.n = kElements,
                       .param = p.data_ptr(),
                       .grad = g.data_ptr(),
                       .exp_avg = m.data_ptr(),
                       .exp_avg_sq = v.data_ptr(),
                       .param_copy = copy ? half.data_ptr() : nullptr,
                       .weight_decay = 0.1,
                       .grad_scale = 0.5};
  const auto ours = [&] {
    ++a.step;
    kernels::adamw(a);
  };
  const auto torch = [&] {
    step[0].add_(1);
    at::_fused_adamw_(tp, tg, tm, tv, {}, step, 1e-3, 0.9, 0.999, 0.1, 1e-8, false, false, {}, {});
    if (copy) torch_half.copy_(tp[0]);
  };
  bench::beside_torch(state, kN * (copy ? 30 : 28), ours, torch);
}
BENCHMARK_CAPTURE(adamw, fp32, false)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(adamw, fp32_bf16_copy, true)->UseManualTime()->Unit(benchmark::kMillisecond);

/// The gradient norm; torch: foreach norm.
void sum_of_squares(benchmark::State& state, at::ScalarType type, DType dtype) {
  const at::Tensor x = at::randn({kElements}).to(type);
  const std::vector<at::Tensor> list = {x};
  double result = 0;
  bench::beside_torch(
      state, kN * static_cast<double>(x.element_size()),
      [&] {
        kernels::sum_of_squares(
            {.dtype = dtype, .n = kElements, .x = x.data_ptr(), .result = &result});
      },
      [&] { benchmark::DoNotOptimize(at::_foreach_norm(list)[0].item<float>()); });
}
BENCHMARK_CAPTURE(sum_of_squares, fp32, at::kFloat, DType::kFloat32)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(sum_of_squares, bf16, at::kBFloat16, DType::kBFloat16)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// torch: isfinite().all()
void find_nonfinite(benchmark::State& state) {
  const at::Tensor x = at::randn({kElements});
  int64_t count = 0, first = 0;
  bench::beside_torch(
      state, kN * 4,
      [&] {
        kernels::find_nonfinite(
            {.n = kElements, .x = x.data_ptr(), .count = &count, .first_index = &first});
      },
      [&] { benchmark::DoNotOptimize(at::isfinite(x).all().item<bool>()); });
}
BENCHMARK(find_nonfinite)->UseManualTime()->Unit(benchmark::kMillisecond);

void cast_to_bf16(benchmark::State& state) {
  const at::Tensor x = at::randn({kElements});
  at::Tensor y = at::zeros({kElements}, at::kBFloat16);
  bench::beside_torch(
      state, kN * 6,
      [&] { kernels::cast({.n = kElements, .x = x.data_ptr(), .out = y.data_ptr()}); },
      [&] { y.copy_(x); });
}
BENCHMARK(cast_to_bf16)->UseManualTime()->Unit(benchmark::kMillisecond);

/// Rounding to bf16 by chance; torch: random low halves are added to the bits, which are cut off.
void round_to_bf16_by_chance(benchmark::State& state) {
  const at::Tensor x = at::randn({kElements});
  at::Tensor y = at::zeros({kElements}, at::kBFloat16), noise = at::zeros({kElements}, at::kInt);
  bench::beside_torch(
      state, kN * 6,
      [&] {
        kernels::store_narrow(
            {.cols = kElements, .value = x.data_ptr(), .stored = y.data_ptr(), .by_chance = true});
      },
      [&] {
        noise.random_(0, 1 << 16).add_(x.view(at::kInt)).bitwise_and_(-(1 << 16));
        y.copy_(noise.view(at::kFloat));
      });
}
BENCHMARK(round_to_bf16_by_chance)->UseManualTime()->Unit(benchmark::kMillisecond);

/// Rounding to e4m3 by chance, of values or of their roots; torch: its cast, which rounds to the
/// nearest.
void round_to_e4m3_by_chance(benchmark::State& state, bool root) {
  const at::Tensor x = at::rand({kElements});
  at::Tensor y = at::zeros({kElements}, at::kFloat8_e4m3fn);
  bench::beside_torch(
      state, kN * 5,
      [&] {
        kernels::store_narrow({.type = kernels::NarrowType::kE4M3,
                               .cols = kElements,
                               .value = x.data_ptr(),
                               .stored = y.data_ptr(),
                               .root = root,
                               .by_chance = true});
      },
      [&] { y.copy_(root ? x.sqrt() : x); });
}
BENCHMARK_CAPTURE(round_to_e4m3_by_chance, values, false)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(round_to_e4m3_by_chance, roots, true)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void scale(benchmark::State& state) {
  at::Tensor x = at::randn({kElements});
  bench::beside_torch(
      state, kN * 8, [&] { kernels::scale({.n = kElements, .x = x.data_ptr(), .factor = 1.0}); },
      [&] { x.mul_(1.0); });
}
BENCHMARK(scale)->UseManualTime()->Unit(benchmark::kMillisecond);

void zero(benchmark::State& state) {
  at::Tensor x = at::randn({kElements});
  bench::beside_torch(
      state, kN * 4, [&] { kernels::zero({.bytes = kElements * 4, .x = x.data_ptr()}); },
      [&] { x.zero_(); });
}
BENCHMARK(zero)->UseManualTime()->Unit(benchmark::kMillisecond);

} // namespace

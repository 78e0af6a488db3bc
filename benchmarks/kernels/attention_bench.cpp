// Causal attention of training, against LibTorch's fused CPU kernel. FLOPs count
// the visible half of the scores, in two products forward and five backward.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/kernels/attention/attention.h"

namespace pentatron::bench {
namespace {

kernels::HeadsView heads(const at::Tensor& x) {
  return {x.data_ptr(), x.stride(0), x.stride(1)};
}

/// [T, n, d] as LibTorch wants it, key heads repeated for their group: [batch, n, sequence, d].
at::Tensor torch_view(const at::Tensor& x, int64_t batch, int64_t n) {
  return x.view({batch, -1, x.size(1), x.size(2)})
      .transpose(1, 2)
      .repeat_interleave(n / x.size(1), 1);
}

void attention(benchmark::State& state, at::ScalarType type, bool backward) {
  at::set_num_threads(2);
  const int64_t batch = state.range(0), sequence = state.range(1), n = state.range(2),
                g = state.range(3), d = state.range(4), tokens = batch * sequence;
  const at::Tensor q = at::randn({tokens, n, d}).to(type), k = at::randn({tokens, g, d}).to(type),
                   v = at::randn({tokens, g, d}).to(type),
                   dout = at::randn({tokens, n, d}).to(type), out = at::empty_like(q),
                   dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v),
                   lse = at::empty({n, tokens});
  std::vector<int64_t> documents;
  for (int64_t i = 0; i <= batch; ++i) documents.push_back(i * sequence);
  const kernels::AttentionShape shape{.dtype = dtype_of(q),
                                      .heads = n,
                                      .kv_heads = g,
                                      .head_size = d,
                                      .documents = documents,
                                      .scale = 1 / std::sqrt(static_cast<double>(d))};
  if (!kernels::attention_supported(shape)) {
    state.SkipWithError("no fast entry on this processor");
    return;
  }
  const kernels::AttentionForward fwd{.shape = shape,
                                      .q = heads(q),
                                      .k = heads(k),
                                      .v = heads(v),
                                      .out = heads(out),
                                      .lse = lse.data_ptr()};
  const kernels::AttentionBackward bwd{.shape = shape,
                                       .q = heads(q),
                                       .k = heads(k),
                                       .v = heads(v),
                                       .out = heads(out),
                                       .dout = heads(dout),
                                       .lse = lse.data_ptr(),
                                       .dq = heads(dq),
                                       .dk = heads(dk),
                                       .dv = heads(dv)};
  const at::Tensor tq = torch_view(q, batch, n), tk = torch_view(k, batch, n),
                   tv = torch_view(v, batch, n), td = torch_view(dout, batch, n);
  kernels::attention_forward(fwd);
  const auto [to, tlse] = at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true);
  const double products = backward ? 5 : 2;
  const double gflop =
      1e-9 * products * static_cast<double>(tokens * n * d) * static_cast<double>(sequence + 1);
  if (backward) {
    beside_torch(
        state, gflop, "GFLOP/s", [&] { kernels::attention_backward(bwd); },
        [&, o = to, l = tlse] {
          at::_scaled_dot_product_flash_attention_for_cpu_backward(td, tq, tk, tv, o, l, 0.0, true);
        });
  } else {
    beside_torch(
        state, gflop, "GFLOP/s", [&] { kernels::attention_forward(fwd); },
        [&] { at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true); });
  }
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 1024, 12, 12, 64})
      ->Args({2, 1024, 8, 4, 64})
      ->Args({1, 4096, 8, 2, 128})
      ->ArgNames({"batch", "sequence", "heads", "kv_heads", "head_size"})
      ->UseManualTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(attention, forward_fp32, at::kFloat, false)->Apply(shapes);
BENCHMARK_CAPTURE(attention, backward_fp32, at::kFloat, true)->Apply(shapes);
BENCHMARK_CAPTURE(attention, forward_bf16, at::kBFloat16, false)->Apply(shapes);
BENCHMARK_CAPTURE(attention, backward_bf16, at::kBFloat16, true)->Apply(shapes);

} // namespace
} // namespace pentatron::bench

// Causal attention of training by every entry that this machine has, against LibTorch's fused CPU
// kernel. FLOPs count
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

using Forward = kernels::Entry<kernels::AttentionForward>;
using Backward = kernels::Entry<kernels::AttentionBackward>;

/// Times the backward entry, or the forward entry if there is none.
void attention(benchmark::State& state, at::ScalarType type, const Forward& forward,
               const Backward* backward) {
  at::set_num_threads(2);
  const int64_t batch = state.range(0), sequence = state.range(1), n = state.range(2),
                g = state.range(3), d = state.range(4), tokens = batch * sequence;
  const at::Tensor q = at::randn({tokens, n, d}).to(type), k = at::randn({tokens, g, d}).to(type),
                   v = at::randn({tokens, g, d}).to(type),
                   dout = at::randn({tokens, n, d}).to(type), out = at::empty_like(q),
                   dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v),
                   lse = at::empty({n, tokens});
  std::vector<kernels::AttentionPair> pairs;
  for (int64_t i = 0; i < batch; ++i) {
    pairs.push_back({.query_begin = i * sequence,
                     .query_size = sequence,
                     .key_begin = i * sequence,
                     .key_size = sequence});
  }
  const kernels::AttentionShape shape{.dtype = dtype_of(q),
                                      .heads = n,
                                      .kv_heads = g,
                                      .head_size = d,
                                      .queries = tokens,
                                      .pairs = pairs,
                                      .scale = 1 / std::sqrt(static_cast<double>(d))};
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
  forward.run(fwd, {});
  const auto [to, tlse] = at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true);
  const double products = backward != nullptr ? 5 : 2;
  const double gflop =
      1e-9 * products * static_cast<double>(tokens * n * d) * static_cast<double>(sequence + 1);
  if (backward != nullptr) {
    beside_torch(
        state, gflop, "GFLOP/s", [&] { backward->run(bwd, {}); },
        [&, o = to, l = tlse] {
          at::_scaled_dot_product_flash_attention_for_cpu_backward(td, tq, tk, tv, o, l, 0.0, true);
        });
  } else {
    beside_torch(
        state, gflop, "GFLOP/s", [&] { forward.run(fwd, {}); },
        [&] { at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true); });
  }
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1, 1024, 12, 12, 64})
      ->Args({2, 1024, 8, 4, 64})
      ->Args({4, 512, 8, 4, 64})
      ->Args({1, 4096, 8, 2, 128})
      ->ArgNames({"batch", "sequence", "heads", "kv_heads", "head_size"})
      ->UseManualTime()
      ->MinTime(0.3)
      ->Unit(benchmark::kMillisecond);
}

/// Rows for each entry that does not refuse the type; an entry has one name in both lists.
bool add_rows(const std::string& type_name, at::ScalarType type) {
  kernels::AttentionForward args;
  args.shape.dtype = type == at::kFloat ? kernels::DType::kFloat32 : kernels::DType::kBFloat16;
  for (const Forward& forward : kernels::attention_forward_entries()) {
    if (forward.name == "reference" || !forward.refuse(args, {}).empty()) continue;
    for (const Backward& backward : kernels::attention_backward_entries()) {
      if (backward.name != forward.name) continue;
      const std::string end = "_" + type_name + "/" + std::string(forward.name);
      benchmark::RegisterBenchmark(
          ("attention/forward" + end).c_str(),
          [=](benchmark::State& state) { attention(state, type, forward, nullptr); })
          ->Apply(shapes);
      benchmark::RegisterBenchmark(
          ("attention/backward" + end).c_str(),
          [=](benchmark::State& state) { attention(state, type, forward, &backward); })
          ->Apply(shapes);
    }
  }
  return true;
}

const bool added = add_rows("fp32", at::kFloat) && add_rows("bf16", at::kBFloat16);

} // namespace
} // namespace pentatron::bench

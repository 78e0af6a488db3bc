// Causal attention of training by every entry that this machine has, against LibTorch's fused CPU
// kernel. Both directions together: plain against that kernel, with dropout and with a cap against
// LibTorch's operators, because it has no fused CPU kernel for them; keys and values of LibTorch
// are repeated for their groups before. FLOPs count the visible half of the scores, in two products
// forward and five backward.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <tuple>

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

/// Operands and results of a shape, on two threads.
struct Call {
  Call(const benchmark::State& state, at::ScalarType type)
      : batch(state.range(0)), sequence(state.range(1)), n(state.range(2)), g(state.range(3)),
        d(state.range(4)), tokens(batch * sequence), q(at::randn({tokens, n, d}).to(type)),
        k(at::randn({tokens, g, d}).to(type)), v(at::randn({tokens, g, d}).to(type)),
        dout(at::randn({tokens, n, d}).to(type)), out(at::empty_like(q)), dq(at::empty_like(q)),
        dk(at::empty_like(k)), dv(at::empty_like(v)), lse(at::empty({n, tokens})),
        row_ids(at::arange(tokens)) {
    for (int64_t i = 0; i < batch; ++i) {
      pairs.push_back({.query_begin = i * sequence,
                       .query_size = sequence,
                       .key_begin = i * sequence,
                       .key_size = sequence});
    }
  }
  kernels::AttentionShape shape(double cap = 0, double dropout = 0) const {
    return {.dtype = dtype_of(q),
            .heads = n,
            .kv_heads = g,
            .head_size = d,
            .queries = tokens,
            .pairs = pairs,
            .scale = 1 / std::sqrt(static_cast<double>(d)),
            .cap = cap,
            .dropout = {.p = dropout,
                        .row_ids = reinterpret_cast<const uint64_t*>(row_ids.data_ptr<int64_t>())}};
  }
  kernels::AttentionForward forward(const kernels::AttentionShape& shape) const {
    return {.shape = shape,
            .q = heads(q),
            .k = heads(k),
            .v = heads(v),
            .out = heads(out),
            .lse = lse.data_ptr()};
  }
  kernels::AttentionBackward backward(const kernels::AttentionShape& shape) const {
    return {.shape = shape,
            .q = heads(q),
            .k = heads(k),
            .v = heads(v),
            .out = heads(out),
            .dout = heads(dout),
            .lse = lse.data_ptr(),
            .dq = heads(dq),
            .dk = heads(dk),
            .dv = heads(dv)};
  }
  double gflop(double products) const {
    return 1e-9 * products * static_cast<double>(tokens * n * d) *
           static_cast<double>(sequence + 1);
  }

  int64_t batch, sequence, n, g, d, tokens;
  at::Tensor q, k, v, dout, out, dq, dk, dv, lse, row_ids;
  std::vector<kernels::AttentionPair> pairs;
};

/// Times the backward entry, or the forward entry if there is none.
void attention(benchmark::State& state, at::ScalarType type, const Forward& forward,
               const Backward* backward) {
  at::set_num_threads(2);
  const Call c(state, type);
  const at::Tensor tq = torch_view(c.q, c.batch, c.n), tk = torch_view(c.k, c.batch, c.n),
                   tv = torch_view(c.v, c.batch, c.n), td = torch_view(c.dout, c.batch, c.n);
  forward.run(c.forward(c.shape()), {});
  const auto [to, tlse] = at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true);
  if (backward != nullptr) {
    beside_torch(
        state, c.gflop(5), "GFLOP/s", [&] { backward->run(c.backward(c.shape()), {}); },
        [&, o = to, l = tlse] {
          at::_scaled_dot_product_flash_attention_for_cpu_backward(td, tq, tk, tv, o, l, 0.0, true);
        });
  } else {
    beside_torch(
        state, c.gflop(2), "GFLOP/s", [&] { forward.run(c.forward(c.shape()), {}); },
        [&] { at::_scaled_dot_product_flash_attention_for_cpu(tq, tk, tv, 0.0, true); });
  }
}

/// Both directions with a cap (as transformers writes it) or with dropout.
void with_factors(benchmark::State& state, at::ScalarType type, double cap, double dropout) {
  at::set_num_threads(2);
  const Call c(state, type);
  const kernels::AttentionShape shape = c.shape(cap, dropout);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {c.q, c.k, c.v})
    leaves.push_back(torch_view(x, c.batch, c.n).contiguous().requires_grad_(true));
  const at::Tensor td = torch_view(c.dout, c.batch, c.n).contiguous(),
                   hidden = at::ones({c.sequence, c.sequence}, at::kBool).triu(1);
  const auto torch = [&] {
    at::Tensor y;
    if (cap > 0) {
      at::Tensor s = at::matmul(leaves[0], leaves[1].transpose(2, 3)) * shape.scale;
      s = at::tanh(s / cap) * cap;
      y = at::matmul(s.masked_fill(hidden, -1e30).softmax(-1), leaves[2]);
    } else {
      y = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], {}, dropout, true);
    }
    y.backward(td);
    for (at::Tensor& x : leaves) x.mutable_grad().reset();
  };
  const auto ours = [&] {
    kernels::attention_forward(c.forward(shape));
    kernels::attention_backward(c.backward(shape));
  };
  beside_torch(state, c.gflop(7), "GFLOP/s", ours, torch);
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
  for (const auto& [name, cap, dropout] :
       {std::tuple{"plain", 0.0, 0.0}, {"cap", 50.0, 0.0}, {"dropout", 0.0, 0.1}}) {
    benchmark::RegisterBenchmark(
        (std::string("attention/both_") + name + "_" + type_name).c_str(),
        [=](benchmark::State& state) { with_factors(state, type, cap, dropout); })
        ->Apply(shapes);
  }
  return true;
}

const bool added = add_rows("fp32", at::kFloat) && add_rows("bf16", at::kBFloat16);

} // namespace
} // namespace pentatron::bench

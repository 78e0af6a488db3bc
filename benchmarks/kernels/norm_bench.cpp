#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/kernels/norm/norm.h"

namespace pentatron::bench {

namespace {

using namespace kernels;

struct Data {
  Data(const benchmark::State& state, at::ScalarType type)
      : rows(state.range(0)), cols(state.range(1)), x(at::randn({rows, cols}).to(type)),
        dy(at::randn({rows, cols}).to(type)), weight(at::randn({cols}).to(type)),
        bias(at::randn({cols}).to(type)), y(at::empty_like(x)), mean(at::zeros({rows, 1})),
        rstd(at::zeros({rows, 1})), dweight(at::zeros({cols})), dbias(at::zeros({cols})) {}
  double bytes(int passes) const {
    return static_cast<double>(passes) * rows * cols * x.element_size();
  }
  NormForward forward(NormKind kind) {
    auto a = args<NormForward>(kind);
    if (kind == NormKind::kLayerNorm) a.bias = bias.data_ptr();
    a.y = y.data_ptr();
    return a;
  }
  NormBackward backward(NormKind kind) {
    auto a = args<NormBackward>(kind);
    a.dy = dy.data_ptr();
    a.dx = y.data_ptr();
    a.dweight = dweight.data_ptr();
    if (kind == NormKind::kLayerNorm) a.dbias = dbias.data_ptr();
    return a;
  }
  /// What the forward and the backward have in common.
  template <class Args> Args args(NormKind kind) {
    Args a{.kind = kind, .dtype = dtype_of(x), .weight_dtype = dtype_of(weight)};
    a.rows = rows;
    a.cols = cols;
    a.x = x.data_ptr();
    a.weight = weight.data_ptr();
    a.mean = mean.data_ptr();
    a.rstd = rstd.data_ptr();
    return a;
  }
  int64_t rows, cols;
  at::Tensor x, dy, weight, bias, y, mean, rstd, dweight, dbias;
};

void rms_norm(benchmark::State& state, at::ScalarType type) {
  Data d(state, type);
  const auto args = d.forward(NormKind::kRmsNorm);
  beside_torch(
      state, d.bytes(2), [&] { norm_forward(args); },
      [&] { at::rms_norm(d.x, {d.cols}, d.weight, 1e-5); });
}

/// torch has no operator for it on the CPU; this is the least that its autograd formula runs.
void rms_norm_backward(benchmark::State& state, at::ScalarType type) {
  Data d(state, type);
  norm_forward(d.forward(NormKind::kRmsNorm));
  const auto args = d.backward(NormKind::kRmsNorm);
  const at::Tensor rstd = d.rstd.to(type);
  beside_torch(
      state, d.bytes(3), [&] { norm_backward(args); },
      [&] {
        const at::Tensor xhat = d.x * rstd;
        const at::Tensor g = d.dy * d.weight;
        const at::Tensor dx = (g - xhat * (g * xhat).mean(-1, true)) * rstd;
        const at::Tensor dw = (d.dy * xhat).sum(0);
      });
}

void layer_norm(benchmark::State& state, at::ScalarType type) {
  Data d(state, type);
  const auto args = d.forward(NormKind::kLayerNorm);
  beside_torch(
      state, d.bytes(2), [&] { norm_forward(args); },
      [&] { at::native_layer_norm(d.x, {d.cols}, d.weight, d.bias, 1e-5); });
}

void layer_norm_backward(benchmark::State& state, at::ScalarType type) {
  Data d(state, type);
  const auto [y, mean, rstd] = at::native_layer_norm(d.x, {d.cols}, d.weight, d.bias, 1e-5);
  norm_forward(d.forward(NormKind::kLayerNorm));
  const auto args = d.backward(NormKind::kLayerNorm);
  beside_torch(
      state, d.bytes(3), [&] { norm_backward(args); },
      [&, mean = mean, rstd = rstd] {
        at::native_layer_norm_backward(d.dy, d.x, {d.cols}, mean, rstd, d.weight, d.bias,
                                       {true, true, true});
      });
}

/// GPT-2 124M (1 x 1024 tokens), the Llama of the peers (2048 tokens), its heads under QK norm, a
/// large model.
void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1024, 768})->Args({2048, 512})->Args({16384, 64})->Args({2048, 4096})->UseManualTime();
}

BENCHMARK_CAPTURE(rms_norm, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(rms_norm, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(rms_norm_backward, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(rms_norm_backward, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(layer_norm, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(layer_norm, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(layer_norm_backward, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(layer_norm_backward, bf16, at::kBFloat16)->Apply(shapes);

} // namespace

} // namespace pentatron::bench

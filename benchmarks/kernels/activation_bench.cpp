#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "benchmarks/kernels/beside_torch.h"
#include "benchmarks/kernels/torch_dtype.h"
#include "pentatron/kernels/activation/activation.h"

namespace pentatron::bench {

namespace {

using namespace kernels;

struct Data {
  Data(const benchmark::State& state, at::ScalarType type, bool gated)
      : rows(state.range(0)), cols(state.range(1)),
        x(at::randn({rows, gated ? 2 * cols : cols}).to(type)),
        dy(at::randn({rows, cols}).to(type)), y(at::empty_like(dy)), dx(at::empty_like(x)) {}
  double bytes(int passes) const {
    return static_cast<double>(passes) * rows * cols * x.element_size();
  }
  ActivationForward forward(Activation kind, bool gated) {
    return {.kind = kind,
            .gated = gated,
            .dtype = dtype_of(x),
            .rows = rows,
            .cols = cols,
            .x = x.data_ptr(),
            .y = y.data_ptr()};
  }
  ActivationBackward backward(Activation kind, bool gated) {
    return {.kind = kind,
            .gated = gated,
            .dtype = dtype_of(x),
            .rows = rows,
            .cols = cols,
            .dy = dy.data_ptr(),
            .x = x.data_ptr(),
            .dx = dx.data_ptr()};
  }
  int64_t rows, cols;
  at::Tensor x, dy, y, dx;
};

void gelu(benchmark::State& state, at::ScalarType type, Activation kind) {
  Data d(state, type, false);
  const auto args = d.forward(kind, false);
  const char* approximate = kind == Activation::kGelu ? "none" : "tanh";
  beside_torch(
      state, d.bytes(2), [&] { activation_forward(args); }, [&] { at::gelu(d.x, approximate); });
}

void gelu_backward(benchmark::State& state, at::ScalarType type, Activation kind) {
  Data d(state, type, false);
  const auto args = d.backward(kind, false);
  const char* approximate = kind == Activation::kGelu ? "none" : "tanh";
  beside_torch(
      state, d.bytes(3), [&] { activation_backward(args); },
      [&] { at::gelu_backward(d.dy, d.x, approximate); });
}

void swiglu(benchmark::State& state, at::ScalarType type) {
  Data d(state, type, true);
  const auto args = d.forward(Activation::kSilu, true);
  beside_torch(
      state, d.bytes(3), [&] { activation_forward(args); },
      [&] {
        const auto halves = d.x.chunk(2, -1);
        at::silu(halves[0]) * halves[1];
      });
}

void swiglu_backward(benchmark::State& state, at::ScalarType type) {
  Data d(state, type, true);
  const auto args = d.backward(Activation::kSilu, true);
  beside_torch(
      state, d.bytes(5), [&] { activation_backward(args); },
      [&] { // autograd keeps silu(gate), so it is not counted
        const auto halves = d.x.chunk(2, -1);
        at::cat({at::silu_backward(d.dy * halves[1], halves[0]), d.dy * d.y}, -1);
      });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({1024, 3072})->Args({2048, 1408})->Args({2048, 11008})->UseManualTime();
}

BENCHMARK_CAPTURE(gelu, exact_fp32, at::kFloat, Activation::kGelu)->Apply(shapes);
BENCHMARK_CAPTURE(gelu, exact_bf16, at::kBFloat16, Activation::kGelu)->Apply(shapes);
BENCHMARK_CAPTURE(gelu, tanh_fp32, at::kFloat, Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(gelu, tanh_bf16, at::kBFloat16, Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(gelu_backward, exact_fp32, at::kFloat, Activation::kGelu)->Apply(shapes);
BENCHMARK_CAPTURE(gelu_backward, tanh_fp32, at::kFloat, Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(gelu_backward, tanh_bf16, at::kBFloat16, Activation::kGeluTanh)->Apply(shapes);
BENCHMARK_CAPTURE(swiglu, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(swiglu, bf16, at::kBFloat16)->Apply(shapes);
BENCHMARK_CAPTURE(swiglu_backward, fp32, at::kFloat)->Apply(shapes);
BENCHMARK_CAPTURE(swiglu_backward, bf16, at::kBFloat16)->Apply(shapes);

} // namespace

} // namespace pentatron::bench

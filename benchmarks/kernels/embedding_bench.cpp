// Rows of a GPT-2 sized table. Token numbers follow a power law, as in text. Bytes counted:
// forward, rows read and written; gradient, dy read and the gradient's rows read and written.
#include "pentatron/kernels/embedding/embedding.h"

#include "benchmarks/kernels/beside_torch.h"

namespace {

using namespace pentatron;
using kernels::DType;

constexpr int64_t kVocab = 50257, kTokens = 8192, kWidth = 768;
constexpr double kValues = static_cast<double>(kTokens * kWidth);

at::Tensor text_like_ids() {
  at::manual_seed(1);
  return (at::exp(at::rand({kTokens}) * std::log(static_cast<double>(kVocab))) - 1)
      .to(at::kLong)
      .clamp(0, kVocab - 1);
}

void embedding_forward(benchmark::State& state) {
  const at::Tensor table = at::randn({kVocab, kWidth}), ids = text_like_ids();
  at::Tensor out = at::empty({kTokens, kWidth});
  bench::beside_torch(
      state, kValues * 8,
      [&] {
        kernels::embedding({.tokens = kTokens,
                            .width = kWidth,
                            .table = table.data_ptr(),
                            .rows = kVocab,
                            .ids = ids.data_ptr<int64_t>(),
                            .out = out.data_ptr()});
      },
      [&] { benchmark::DoNotOptimize(at::embedding(table, ids)); });
}
BENCHMARK(embedding_forward)->UseManualTime()->Unit(benchmark::kMillisecond);

/// torch: embedding_dense_backward, then added to the accumulated gradient.
void embedding_gradient(benchmark::State& state, at::ScalarType type, DType dtype, bool index_add) {
  const at::Tensor dy = at::randn({kTokens, kWidth}).to(type), ids = text_like_ids();
  at::Tensor grad = at::zeros({kVocab, kWidth}), torch_grad = grad.clone();
  bench::beside_torch(
      state, kValues * (8 + static_cast<double>(dy.element_size())),
      [&] {
        kernels::embedding_gradient({.dtype = dtype,
                                     .tokens = kTokens,
                                     .width = kWidth,
                                     .dy = dy.data_ptr(),
                                     .ids = ids.data_ptr<int64_t>(),
                                     .rows = kVocab,
                                     .main_grad = grad.data_ptr()});
      },
      [&] {
        if (index_add) {
          torch_grad.index_add_(0, ids, dy);
        } else {
          torch_grad.add_(at::embedding_dense_backward(dy, ids, kVocab, -1, false));
        }
      });
}
BENCHMARK_CAPTURE(embedding_gradient, fp32_dense_backward, at::kFloat, DType::kFloat32, false)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(embedding_gradient, fp32_index_add, at::kFloat, DType::kFloat32, true)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(embedding_gradient, bf16_dense_backward, at::kBFloat16, DType::kBFloat16, false)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

} // namespace

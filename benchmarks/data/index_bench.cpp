// The three index arrays of Megatron's GPT dataset, on one core. megatron-core's C++ helper needs
// 62 ms for 1e6 documents, 1e9 tokens and sequences of 1024, and 755 ms for 1e7 documents, 1e10
// tokens and sequences of 4096 (one epoch each).
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "pentatron/data/gpt/blend.h"
#include "pentatron/data/gpt/gpt_index.h"

namespace pentatron::data {
namespace {

/// Lengths that are 1000 tokens in the mean.
std::vector<int32_t> lengths_of(int64_t documents) {
  std::mt19937 random(1);
  std::vector<int32_t> lengths(static_cast<size_t>(documents));
  for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(random() % 1999);
  return lengths;
}

void BM_GptIndex(benchmark::State& state) {
  const std::vector<int32_t> lengths = lengths_of(state.range(0));
  int64_t bytes = 0;
  for (auto _ : state) {
    const GptIndex index = build_gpt_index(lengths, 0, {.sequence_length = state.range(1)});
    bytes = index.array_bytes();
    benchmark::DoNotOptimize(index.num_samples);
  }
  state.counters["MB"] = static_cast<double>(bytes) / 1e6;
}
BENCHMARK(BM_GptIndex)
    ->Args({1'000'000, 1024})
    ->Args({10'000'000, 4096})
    ->ArgNames({"documents", "sequence"})
    ->Unit(benchmark::kMillisecond);

void BM_BlendOrder(benchmark::State& state) {
  const std::vector<double> weights(static_cast<size_t>(state.range(0)),
                                    1.0 / static_cast<double>(state.range(0)));
  for (auto _ : state) {
    const BlendOrder order(weights);
    for (int64_t n = 0; n < 1'000'000; n += 65536) benchmark::DoNotOptimize(order(n).sample);
  }
  state.SetItemsProcessed(state.iterations() * 1'000'000);
}
BENCHMARK(BM_BlendOrder)->Arg(3)->Arg(30)->ArgName("datasets")->Unit(benchmark::kMillisecond);

} // namespace
} // namespace pentatron::data

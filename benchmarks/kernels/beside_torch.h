/// Times a kernel and LibTorch's way to the same result alternately in one loop, so that both see
/// the same machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include <benchmark/benchmark.h>

namespace pentatron::bench {

/// The lower quartile: what the code takes when little else runs, and not one lucky run.
inline double typical(std::vector<double> x) {
  const auto quarter = static_cast<std::ptrdiff_t>(x.size() / 4);
  std::nth_element(x.begin(), x.begin() + quarter, x.end());
  return x[static_cast<size_t>(quarter)];
}

template <class F> double seconds(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Runs `ours` and `torch` in turn (the benchmark uses manual time). `bytes` is what the operation
/// must at least move; counters: GB/s and torch_GB/s from the lower quartiles, ratio = torch's time
/// / ours.
template <class Ours, class Torch>
void beside_torch(benchmark::State& state, double bytes, Ours&& ours, Torch&& torch) {
  std::vector<double> our_times, torch_times;
  ours();
  torch();
  for (auto _ : state) {
    our_times.push_back(seconds(ours));
    torch_times.push_back(seconds(torch));
    state.SetIterationTime(our_times.back());
  }
  state.counters["GB/s"] = bytes / typical(our_times) * 1e-9;
  state.counters["torch_GB/s"] = bytes / typical(torch_times) * 1e-9;
  state.counters["ratio"] = typical(torch_times) / typical(our_times);
}

} // namespace pentatron::bench

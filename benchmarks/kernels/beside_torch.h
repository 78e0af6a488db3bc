/// Times a kernel and LibTorch's way to the same result alternately in one loop, so that both see
/// the same machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
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

/// Runs `ours` and `torch` in turn (the benchmark uses manual time). `amount` is the work of one
/// run in units of 1e9 `unit`; counters: `unit` and torch_`unit` a second from the lower quartiles,
/// ratio = torch's time / ours. LibTorch runs once where that takes ten times as long and more than
/// 0.1 s (bf16 without AVX-512, for one).
template <class Ours, class Torch>
void beside_torch(benchmark::State& state, double amount, const std::string& unit, Ours&& ours,
                  Torch&& torch) {
  std::vector<double> our_times, torch_times;
  ours();
  const double first = seconds(torch);
  const bool once = first > 0.1 && first > 10 * seconds(ours);
  if (once) torch_times.push_back(first);
  for (auto _ : state) {
    our_times.push_back(seconds(ours));
    if (!once) torch_times.push_back(seconds(torch));
    state.SetIterationTime(our_times.back());
  }
  state.counters[unit] = amount / typical(our_times);
  state.counters["torch_" + unit] = amount / typical(torch_times);
  state.counters["ratio"] = typical(torch_times) / typical(our_times);
}

/// For operations that are bound by memory: `bytes` is what they must at least move.
template <class Ours, class Torch>
void beside_torch(benchmark::State& state, double bytes, Ours&& ours, Torch&& torch) {
  beside_torch(state, 1e-9 * bytes, "GB/s", ours, torch);
}

} // namespace pentatron::bench

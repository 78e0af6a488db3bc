#include "pentatron/kernels/selection/measure.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace pentatron::kernels {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// An entry that takes this many times as long as the fastest is not run again.
constexpr double kFarBehind = 1.5;

double time_once(const std::function<void()>& run) {
  const Clock::time_point begin = Clock::now();
  run();
  return std::max(seconds_since(begin), 1e-9);
}

/// The share of the first entry's time by which `entry` must be faster.
double needed_win(const Probe& probe, const Probe::Entry& entry) {
  if (!entry.per_token) return kLargeWin;
  return probe.unit == kBytesPerSecond ? kClearWinOfMemory : kClearWin;
}

Measurement measure_class(const Probe& probe, const std::vector<int>& candidates, double seconds) {
  Measurement m{.op_class = probe.op_class, .times = {}, .work = probe.work, .unit = probe.unit};
  for (const int i : candidates) {
    const Probe::Entry& entry = probe.entries[static_cast<size_t>(i)];
    m.times.push_back({.entry = entry.name,
                       .seconds = time_once(entry.run), // warms caches and buffers up
                       .needed = needed_win(probe, entry)});
  }
  constexpr int kLeast = 2;
  const Clock::time_point begin = Clock::now();
  for (int round = 0; round < kLeast || seconds_since(begin) < seconds; ++round) {
    double fastest = std::numeric_limits<double>::infinity();
    for (const Measurement::Time& t : m.times) fastest = std::min(fastest, t.seconds);
    for (size_t i = 0; i < m.times.size(); ++i) {
      Measurement::Time& t = m.times[i];
      if (round >= kLeast && t.seconds > kFarBehind * fastest) continue;
      const Probe::Entry& entry = probe.entries[static_cast<size_t>(candidates[i])];
      t.seconds = std::min(t.seconds, time_once(entry.run));
    }
  }
  m.chosen = choose_fastest(m.times);
  return m;
}

/// Whether a class of products or attention is of another type than those asked for.
bool is_left_out(OpClass c, const std::vector<DType>& types) {
  const auto wanted = [&](DType t) {
    return std::find(types.begin(), types.end(), t) != types.end();
  };
  if (c.op == Op::kGemm) return !wanted(c.part / 16 == 0 ? DType::kFloat32 : DType::kBFloat16);
  if (c.op == Op::kAttentionForward || c.op == Op::kAttentionBackward)
    return !wanted(static_cast<DType>(c.part / 4));
  return false;
}

} // namespace

size_t choose_fastest(std::span<const Measurement::Time> times) {
  size_t best = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i].seconds < times[best].seconds &&
        times[i].seconds < (1 - times[i].needed) * times[0].seconds)
      best = i;
  }
  return best;
}

std::vector<Measurement> measure(const std::vector<OpClass>& classes,
                                 const MeasureOptions& options) {
  std::vector<Measurement> measured;
  ProbeMemory memory;
  for (const OpClass c : classes) {
    if (is_left_out(c, options.product_types)) continue;
    const std::vector<int> candidates = describe_probe(c).candidates();
    if (candidates.empty() || (candidates.size() == 1 && !options.single_candidates)) continue;
    const Probe probe = make_probe(c, memory, options.rows);
    measured.push_back(measure_class(probe, candidates, options.seconds_per_class));
  }
  return measured;
}

std::vector<Measurement> complete_selection(Selection& selection, const MeasureOptions& options) {
  std::vector<OpClass> missing;
  for (const OpClass c : all_op_classes()) {
    if (!selection.find(c).empty()) continue;
    const Probe probe = describe_probe(c);
    const std::vector<int> candidates = probe.candidates();
    if (candidates.size() == 1)
      selection.set(c, probe.entries[static_cast<size_t>(candidates[0])].name);
    if (candidates.size() > 1) missing.push_back(c);
  }
  std::vector<Measurement> measured = measure(missing, options);
  for (const Measurement& m : measured) selection.set(m.op_class, m.times[m.chosen].entry);
  return measured;
}

std::vector<std::pair<OpClass, std::string>> departures(const Selection& selection) {
  std::vector<std::pair<OpClass, std::string>> different;
  for (const auto& [name, entry] : selection.choices()) {
    const std::optional<OpClass> c = find_op_class(name);
    if (!c) continue;
    const Probe probe = describe_probe(*c);
    const int first = probe.first();
    if (first >= 0 && probe.entries[static_cast<size_t>(first)].name != entry)
      different.emplace_back(*c, entry);
  }
  return different;
}

} // namespace pentatron::kernels

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

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The share of the first entry's time by which `entry` must be faster.
double needed_win(const Probe& probe, const Probe::Entry& entry) {
  if (!entry.per_token) return kLargeWin;
  return probe.unit == kBytesPerSecond ? kClearWinOfMemory : kClearWin;
}

/// What is known of an entry while its class is measured.
struct Timing {
  int clean_runs = 0;
  double clean_s = kNever, any_s = kNever; ///< of the fastest undisturbed run, and of any
  double busy_s = kNever;                  ///< least processor time of a run

  void add(const TimedRun& run) {
    any_s = std::min(any_s, run.seconds);
    busy_s = std::min(busy_s, run.busy_s);
    if (run.disturbed) return;
    ++clean_runs;
    clean_s = std::min(clean_s, run.seconds);
  }
  /// Not the fastest, without doubt: a run takes at least its processor time on all threads.
  /// Beside other programs one that was undisturbed can be late all the same.
  bool is_far_behind(double fastest_s, bool alone) const {
    const double least_s = std::max(alone && clean_runs > 0 ? clean_s : 0, busy_s / num_threads());
    return least_s > kFarBehind * fastest_s;
  }
  bool is_known(double fastest_s, bool alone) const {
    constexpr int kLeast = 2, kLeastBesideOthers = 5;
    return clean_runs >= (alone ? kLeast : kLeastBesideOthers) || is_far_behind(fastest_s, alone);
  }
};

double fastest_of(const std::vector<Timing>& timings) {
  double fastest = kNever;
  for (const Timing& t : timings) fastest = std::min(fastest, t.clean_s);
  return fastest;
}

Measurement measure_class(const Probe& probe, const std::vector<int>& candidates,
                          const MeasureOptions& options) {
  constexpr int kLeastRounds = 2;
  const auto entry = [&](size_t i) -> const Probe::Entry& {
    return probe.entries[static_cast<size_t>(candidates[i])];
  };
  std::vector<Timing> timings(candidates.size());
  for (size_t i = 0; i < timings.size(); ++i) { // warms caches and buffers up
    options.progress();
    entry(i).run();
  }
  const Clock::time_point begin = Clock::now();
  bool enough = false, alone = true;
  for (int round = 1; !enough; ++round) {
    const double fastest = fastest_of(timings);
    for (Timing& timing : timings) {
      if (round > kLeastRounds && timing.is_far_behind(fastest, alone)) continue;
      options.progress();
      const TimedRun run = options.time(entry(static_cast<size_t>(&timing - timings.data())).run);
      timing.add(run);
      alone = alone && !run.disturbed;
    }
    const double passed = seconds_since(begin);
    const bool known =
        std::ranges::all_of(timings, [&, now = fastest_of(timings)](const Timing& t) {
          return t.is_known(now, alone);
        });
    enough = round >= kLeastRounds && ((known && passed >= options.seconds_per_class) ||
                                       passed >= options.patience_per_class_s);
  }

  Measurement m{.op_class = probe.op_class, .times = {}, .work = probe.work, .unit = probe.unit};
  const double fastest = fastest_of(timings);
  for (size_t i = 0; i < timings.size(); ++i) {
    m.disturbed = m.disturbed || !timings[i].is_known(fastest, alone);
    m.times.push_back({.entry = entry(i).name,
                       .seconds = timings[i].clean_runs > 0 ? timings[i].clean_s : timings[i].any_s,
                       .needed = needed_win(probe, entry(i))});
  }
  m.chosen = choose_fastest(m.times);
  return m;
}

} // namespace

bool is_left_out(OpClass c, const MeasureOptions& options) {
  const auto contains = [](const auto& all, auto one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  return contains(options.left_out, c.op) || !contains(options.types, element_type(c));
}

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
                                 const MeasureOptions& wanted) {
  RunTimer timer;
  MeasureOptions options = wanted;
  if (!options.time) options.time = std::ref(timer);
  std::vector<Measurement> measured;
  ProbeMemory memory;
  const Clock::time_point begin = Clock::now();
  for (const OpClass c : classes) {
    if (is_left_out(c, options)) continue;
    const std::vector<int> candidates = describe_probe(c).candidates();
    if (candidates.empty() || (candidates.size() == 1 && !options.single_candidates)) continue;
    if (seconds_since(begin) > options.patience_s) break;
    const Probe probe = make_probe(c, memory, options.rows);
    measured.push_back(measure_class(probe, candidates, options));
  }
  return measured;
}

Completion complete_selection(Selection& selection, const MeasureOptions& options) {
  std::vector<OpClass> missing;
  for (const OpClass c : all_op_classes()) {
    if (!selection.find(c).empty()) continue;
    const Probe probe = describe_probe(c);
    const std::vector<int> candidates = probe.candidates();
    if (candidates.size() == 1)
      selection.set(c, probe.entries[static_cast<size_t>(candidates[0])].name);
    if (candidates.size() > 1 && !is_left_out(c, options)) missing.push_back(c);
  }
  Completion completion{.measured = measure(missing, options), .unmeasured = missing.size()};
  for (const Measurement& m : completion.measured) {
    if (m.disturbed) continue;
    selection.set(m.op_class, m.times[m.chosen].entry);
    --completion.unmeasured;
  }
  return completion;
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

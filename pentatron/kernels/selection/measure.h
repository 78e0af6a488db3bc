/// Times the entries of each class of arguments and chooses the fastest.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "pentatron/base/timed_run.h"
#include "pentatron/kernels/selection/probe.h"
#include "pentatron/kernels/selection/selection.h"

namespace pentatron::kernels {

struct MeasureOptions {
  std::vector<DType> types = {DType::kFloat32, DType::kBFloat16}; ///< element types that matter
  std::vector<Op> left_out = {};                                  ///< operators that do not
  int64_t rows = 256;                                             ///< or tokens, of the examples
  double seconds_per_class = 3e-3; ///< reached by repeating; every entry runs at least twice
  bool single_candidates = false;  ///< also time classes with one candidate, for a report
  /// While other programs run, a class is repeated up to this long until each entry had five
  /// undisturbed runs, and no further class is begun after so many seconds in all.
  double patience_per_class_s = 0.1, patience_s = 4;
  std::function<void()> progress = [] {};                          ///< called before each run
  std::function<TimedRun(const std::function<void()>&)> time = {}; ///< none: a RunTimer
};

/// Whether `options` leaves out that class.
bool is_left_out(OpClass c, const MeasureOptions& options);

/// A candidate must beat the first by this share of its time to be chosen, so that noise does not
/// change a choice. Operators that wait for memory vary more from run to run than products do.
inline constexpr double kClearWin = 0.03;
inline constexpr double kClearWinOfMemory = 0.15;
/// The share for an entry whose result for a token depends on the rest of the batch.
inline constexpr double kLargeWin = 0.2;

/// The times of one class.
struct Measurement {
  struct Time {
    std::string_view entry;
    double seconds = 0;        ///< of the fastest undisturbed run, else of the fastest run
    double needed = kClearWin; ///< share of the first entry's time by which it must be faster
  };
  OpClass op_class;
  std::vector<Time> times; ///< of the candidates, in list order
  size_t chosen = 0;       ///< position in `times`
  /// Other programs ran, and a candidate had too few runs without them.
  bool disturbed = false;
  double work = 0; ///< of one run, in `unit` seconds
  std::string_view unit;

  /// Whether the choice differs from list order.
  bool differs() const { return chosen != 0; }
  double rate() const { return work / times[chosen].seconds; }
};

/// Position of the chosen one of `times`, which are in list order.
size_t choose_fastest(std::span<const Measurement::Time> times);

/// Measures `classes` (those without a candidate are left out) with num_threads() threads.
/// Candidates take turns, and the shortest undisturbed time of each counts.
std::vector<Measurement> measure(const std::vector<OpClass>& classes,
                                 const MeasureOptions& options = {});

struct Completion {
  std::vector<Measurement> measured;
  size_t unmeasured = 0; ///< classes that keep list order because other programs ran
};
/// Adds a choice for every class of `options` that `selection` has none for: measured where several
/// candidates can run, else the only one. A class whose measurement was disturbed gets none.
Completion complete_selection(Selection& selection, const MeasureOptions& options = {});

/// The choices of `selection` that list order would not make on this machine.
std::vector<std::pair<OpClass, std::string>> departures(const Selection& selection);

} // namespace pentatron::kernels

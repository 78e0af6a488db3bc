/// Times the entries of each class of arguments and chooses the fastest.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "pentatron/kernels/selection/probe.h"
#include "pentatron/kernels/selection/selection.h"

namespace pentatron::kernels {

struct MeasureOptions {
  /// Element types of products and attention that are measured; the other operators are measured
  /// for all types.
  std::vector<DType> product_types = {DType::kFloat32, DType::kBFloat16};
  int64_t rows = 256;              ///< or tokens, of the examples
  double seconds_per_class = 3e-3; ///< reached by repeating; every entry runs at least twice
  bool single_candidates = false;  ///< also time classes with one candidate, for a report
};

/// A candidate must beat the first by this share of its time to be chosen, so that noise does not
/// change a choice. Operators that wait for memory vary more from run to run than products do.
inline constexpr double kClearWin = 0.03;
inline constexpr double kClearWinOfMemory = 0.15;
/// The same for an entry that does not keep a token's result the same alone and in a batch.
inline constexpr double kLargeWin = 0.2;

/// The times of one class.
struct Measurement {
  struct Time {
    std::string_view entry;
    double seconds = 0;        ///< of the fastest run
    double needed = kClearWin; ///< share of the first entry's time by which it must be faster
  };
  OpClass op_class;
  std::vector<Time> times; ///< of the candidates, in list order
  size_t chosen = 0;       ///< position in `times`
  double work = 0;         ///< of one run, in `unit` seconds
  std::string_view unit;

  /// Whether the choice differs from list order.
  bool differs() const { return chosen != 0; }
  double rate() const { return work / times[chosen].seconds; }
};

/// Position of the chosen one of `times`, which are in list order.
size_t choose_fastest(std::span<const Measurement::Time> times);

/// Measures `classes` (those without a candidate are left out) with num_threads() threads.
/// Candidates take turns, and the shortest time of each counts.
std::vector<Measurement> measure(const std::vector<OpClass>& classes,
                                 const MeasureOptions& options = {});

/// Adds a choice for every class that `selection` has none for: measured where several candidates
/// can run, else the only one. Returns what was measured.
std::vector<Measurement> complete_selection(Selection& selection,
                                            const MeasureOptions& options = {});

/// The choices of `selection` that list order would not make on this machine.
std::vector<std::pair<OpClass, std::string>> departures(const Selection& selection);

} // namespace pentatron::kernels

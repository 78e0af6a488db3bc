#include "pentatron/trainer/metrics/scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pentatron::trainer {

namespace {

constexpr double kTie = 1e-5; ///< of the largest prediction

double ratio(double a, double b) {
  return b == 0 ? 0 : a / b;
}

struct ClassCounts {
  double right = 0, predicted = 0, labelled = 0;
};

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

/// 1 for the smallest; values up to `tolerance` above the smallest of them share the mean of their
/// ranks.
std::vector<double> ranks_of(const std::vector<double>& values, double tolerance = 0) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] <= values[order[begin]] + tolerance) ++end;
    const double rank = static_cast<double>(begin + 1 + end) / 2;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
    begin = end;
  }
  return ranks;
}

} // namespace

Scores class_scores(std::span<const Prediction> predictions, int64_t classes) {
  if (predictions.empty()) return {};
  std::vector<ClassCounts> counts(static_cast<size_t>(classes));
  double right = 0;
  for (const Prediction& p : predictions) {
    const auto said = static_cast<size_t>(p.predicted), label = static_cast<size_t>(p.label);
    ++counts[said].predicted;
    ++counts[label].labelled;
    if (said != label) continue;
    ++counts[label].right;
    ++right;
  }
  const auto f1 = [](const ClassCounts& c) { return ratio(2 * c.right, c.predicted + c.labelled); };
  const auto n = static_cast<double>(predictions.size());
  double f1_sum = 0, occurring = 0, both = 0, predicted = 0, labelled = 0;
  for (const ClassCounts& c : counts) {
    if (c.predicted + c.labelled > 0) ++occurring;
    f1_sum += f1(c);
    both += c.predicted * c.labelled;
    predicted += c.predicted * c.predicted;
    labelled += c.labelled * c.labelled;
  }
  return {
      {"accuracy", right / n},
      {"f1", classes == 2 ? f1(counts[1]) : ratio(f1_sum, occurring)},
      {"matthews", ratio(right * n - both, std::sqrt((n * n - predicted) * (n * n - labelled)))}};
}

Scores number_scores(std::span<const Prediction> predictions) {
  if (predictions.size() < 2) return {};
  std::vector<double> said, labels;
  for (const Prediction& p : predictions) {
    said.push_back(p.predicted);
    labels.push_back(p.label);
  }
  // Equal texts get predictions whose last bits depend on the batch that they are in.
  double largest = 0;
  for (const double value : said) largest = std::max(largest, std::fabs(value));
  return {{"pearson", correlation(said, labels)},
          {"spearman", correlation(ranks_of(said, kTie * largest), ranks_of(labels))}};
}

} // namespace pentatron::trainer

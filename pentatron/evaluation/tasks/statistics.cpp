#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "pentatron/evaluation/tasks/python_random.h"
#include "pentatron/evaluation/tasks/scores.h"

namespace pentatron::evaluation {

namespace {

constexpr int64_t kBootstrapChunk = 1000;

double mean(const std::vector<MetricValue>& values) {
  double sum = 0;
  for (const MetricValue& v : values) sum += v.value;
  return sum / static_cast<double>(values.size());
}

double weighted_mean(const std::vector<MetricValue>& values) {
  double sum = 0, weight = 0;
  for (const MetricValue& v : values) {
    sum += v.value;
    weight += v.second;
  }
  return sum / weight;
}

/// Of class 1 among labels and predictions; 0 where it never occurs, as scikit-learn.
double f1(const std::vector<MetricValue>& values) {
  double both = 0, either = 0;
  for (const MetricValue& v : values) {
    both += v.value == 1 && v.second == 1 ? 2 : 0;
    either += (v.value == 1 ? 1 : 0) + (v.second == 1 ? 1 : 0);
  }
  return either == 0 ? 0 : both / either;
}

/// Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
double matthews(const std::vector<MetricValue>& values) {
  std::map<double, std::pair<double, double>> counts; // label, prediction
  double right = 0;
  for (const MetricValue& v : values) {
    counts[v.value].first += 1;
    counts[v.second].second += 1;
    right += v.value == v.second ? 1 : 0;
  }
  const auto n = static_cast<double>(values.size());
  double cross = 0, labels = 0, predictions = 0;
  for (const auto& [label, count] : counts) {
    cross += count.first * count.second;
    labels += count.first * count.first;
    predictions += count.second * count.second;
  }
  const double product = (n * n - predictions) * (n * n - labels);
  return product == 0 ? 0 : (right * n - cross) / std::sqrt(product);
}

double sample_deviation(const std::vector<MetricValue>& values) {
  const double middle = mean(values);
  double sum = 0;
  for (const MetricValue& v : values) sum += (v.value - middle) * (v.value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

} // namespace

double aggregate(Aggregation aggregation, const std::vector<MetricValue>& values) {
  switch (aggregation) {
  case Aggregation::kMean:
    return mean(values);
  case Aggregation::kMedian: {
    std::vector<MetricValue> sorted = values;
    std::ranges::sort(sorted, {}, &MetricValue::value);
    return sorted[sorted.size() / 2].value;
  }
  case Aggregation::kPerplexity:
    return std::exp(-mean(values));
  case Aggregation::kWeightedPerplexity:
    return std::exp(-weighted_mean(values));
  case Aggregation::kBitsPerByte:
    return -weighted_mean(values) / std::numbers::ln2;
  case Aggregation::kF1:
    return f1(values);
  case Aggregation::kMatthews:
    return matthews(values);
  case Aggregation::kBrier:
    return mean(values);
  }
  return 0;
}

std::optional<double> standard_error(Aggregation aggregation,
                                     const std::vector<MetricValue>& values,
                                     int64_t bootstrap_iters) {
  if (bootstrap_iters <= 0 || values.size() < 2) return std::nullopt;
  if (aggregation == Aggregation::kMean)
    return sample_deviation(values) / std::sqrt(static_cast<double>(values.size()));
  if (aggregation == Aggregation::kWeightedPerplexity || aggregation == Aggregation::kBitsPerByte ||
      aggregation == Aggregation::kBrier)
    return std::nullopt;
  // Chunk i of resamples is drawn with the seed i.
  const int64_t chunk = std::min(kBootstrapChunk, bootstrap_iters);
  std::vector<MetricValue> results, drawn(values.size());
  for (int64_t i = 0; i < bootstrap_iters / chunk; ++i) {
    PythonRandom random(static_cast<uint64_t>(i));
    for (int64_t j = 0; j < chunk; ++j) {
      for (MetricValue& v : drawn) v = values[random.choice(values.size())];
      results.push_back({.value = aggregate(aggregation, drawn)});
    }
  }
  return results.size() < 2 ? std::nullopt : std::optional(sample_deviation(results));
}

} // namespace pentatron::evaluation

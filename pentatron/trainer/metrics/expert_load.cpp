#include "pentatron/trainer/metrics/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/format.h"

namespace pentatron::trainer {

namespace {

LayerLoad load_of(const std::string& layer, const int64_t* counts, int64_t experts) {
  LayerLoad load{.layer = layer, .choices = {counts, counts + experts}};
  const auto total =
      static_cast<double>(std::accumulate(load.choices.begin(), load.choices.end(), int64_t{0}));
  const double mean = std::max(1.0, total) / static_cast<double>(experts);
  double entropy = 0;
  for (const int64_t n : load.choices) {
    const double times = static_cast<double>(n) / mean;
    load.largest = std::max(load.largest, times);
    if (n == 0) ++load.unused;
    if (n > 0) entropy -= static_cast<double>(n) / total * std::log(static_cast<double>(n) / total);
    const auto bin = std::ranges::upper_bound(LayerLoad::kBins, times) - LayerLoad::kBins.begin();
    ++load.histogram[static_cast<size_t>(bin - 1)];
  }
  if (experts > 1) load.entropy = entropy / std::log(static_cast<double>(experts));
  if (total > 0) load.dropped = static_cast<double>(counts[experts]) / total;
  return load;
}

} // namespace

std::vector<LayerLoad> layer_loads(const std::vector<std::string>& layers,
                                   const at::Tensor& counts) {
  std::vector<LayerLoad> loads;
  if (!counts.defined()) return loads;
  const int64_t columns = counts.size(1);
  for (size_t i = 0; i < layers.size(); ++i)
    loads.push_back(load_of(layers[i],
                            counts.const_data_ptr<int64_t>() + static_cast<int64_t>(i) * columns,
                            columns - 1));
  return loads;
}

ExpertWatch::ExpertWatch(std::vector<std::string> layers, int64_t dead_after)
    : layers_(std::move(layers)), dead_after_(dead_after) {}

std::vector<std::string> ExpertWatch::step(int64_t iteration, const std::vector<LayerLoad>& loads) {
  std::vector<std::string> sentences;
  if (loads.empty()) return sentences;
  if (choices_.empty()) {
    first_ = iteration;
    for (const LayerLoad& load : loads) {
      choices_.emplace_back(load.choices.size(), 0);
      seen_.emplace_back(load.choices.size(), iteration - 1);
      told_.emplace_back(load.choices.size(), false);
    }
  }
  last_ = iteration;
  for (size_t i = 0; i < loads.size(); ++i) {
    std::vector<size_t> dead;
    for (size_t e = 0; e < loads[i].choices.size(); ++e) {
      choices_[i][e] += loads[i].choices[e];
      if (loads[i].choices[e] > 0) {
        seen_[i][e] = iteration;
        told_[i][e] = false;
      }
      if (dead_after_ == 0 || told_[i][e] || iteration - seen_[i][e] < dead_after_) continue;
      told_[i][e] = true;
      dead.push_back(e);
    }
    if (dead.empty()) continue;
    constexpr size_t kShown = 8;
    const size_t more = dead.size() > kShown ? dead.size() - kShown : 0;
    sentences.push_back(fmt::format(
        "{}: {} {}{} received no token in {}", loads[i].layer,
        dead.size() == 1 ? "expert" : "experts",
        fmt::join(dead.begin(), dead.end() - static_cast<std::ptrdiff_t>(more), ", "),
        more > 0 ? fmt::format(" and {} more", more) : "", counted(dead_after_, "step")));
  }
  return sentences;
}

std::vector<std::vector<double>> ExpertWatch::loads() const {
  std::vector<std::vector<double>> result;
  for (const std::vector<int64_t>& layer : choices_) {
    const auto total = static_cast<double>(
        std::max<int64_t>(1, std::accumulate(layer.begin(), layer.end(), int64_t{0})));
    std::vector<double>& row = result.emplace_back();
    for (const int64_t n : layer)
      row.push_back(static_cast<double>(n) * static_cast<double>(layer.size()) / total);
  }
  return result;
}

} // namespace pentatron::trainer

/// How evenly the tokens of training steps lie on the experts of each layer.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace pentatron::trainer {

/// Of one layer in one step.
struct LayerLoad {
  /// Lower ends of the bins of `histogram`, in loads of the mean.
  static constexpr std::array<double, 8> kBins = {0, 0.25, 0.5, 0.75, 1, 1.5, 2, 4};
  std::string layer;
  double largest = 0;                 ///< load, of the mean load
  double entropy = 1;                 ///< of the shares, of that of equal shares: 0 to 1
  int64_t unused = 0;                 ///< experts without a token
  double dropped = 0;                 ///< share of the choices that a full expert did not take
  std::array<int64_t, 8> histogram{}; ///< experts by load
  std::vector<int64_t> choices;       ///< tokens of each expert
};

/// From StepResult::expert_counts.
std::vector<LayerLoad> layer_loads(const std::vector<std::string>& layers,
                                   const at::Tensor& counts);

/// Finds experts that get no tokens, and sums up the steps of a run.
class ExpertWatch {
 public:
  /// An expert is dead that had no token in so many steps; 0: none is.
  ExpertWatch(std::vector<std::string> layers, int64_t dead_after);
  /// A sentence for each layer with experts that died in this step.
  std::vector<std::string> step(int64_t iteration, const std::vector<LayerLoad>& loads);

  const std::vector<std::string>& layers() const { return layers_; }
  /// Loads of the mean, by layer and expert, over the steps so far.
  std::vector<std::vector<double>> loads() const;
  int64_t first() const { return first_; }
  int64_t last() const { return last_; }

 private:
  std::vector<std::string> layers_;
  int64_t dead_after_;
  int64_t first_ = 0, last_ = 0;                     // iterations
  std::vector<std::vector<int64_t>> choices_, seen_; // seen_: iteration of the last token
  std::vector<std::vector<bool>> told_;
};

} // namespace pentatron::trainer

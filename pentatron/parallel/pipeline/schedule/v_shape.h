/// Writes the steps of a rank in a V shape, which holds a stage on the way down (leg 0) and one on
/// the way up (leg 1). Each leg's microbatches run in order, so a step is named by its leg alone.
#pragma once

#include <array>
#include <deque>
#include <utility>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

class VShapeWriter {
 public:
  VShapeWriter(Schedule& schedule, int rank)
      : steps_(schedule.actions[rank]), stage_{rank, schedule.num_stages - 1 - rank} {}

  void forward(int leg) { steps_.push_back(pipeline::forward(stage_[leg], next_forward_[leg]++)); }
  void backward(int leg) {
    steps_.push_back(pipeline::backward(stage_[leg], next_backward_[leg]++));
  }
  /// The forward of one leg together with the backward of the other.
  void overlap(int forward_leg) {
    const int leg = 1 - forward_leg;
    steps_.push_back(pipeline::overlap(stage_[forward_leg], next_forward_[forward_leg]++,
                                       stage_[leg], next_backward_[leg]++));
  }
  void backward_input(int leg) {
    deferred_.push_back({stage_[leg], next_backward_[leg]});
    steps_.push_back(pipeline::backward_input(stage_[leg], next_backward_[leg]++));
  }
  /// The oldest deferred weight gradient of either leg.
  void backward_weight() {
    const auto [stage, microbatch] = deferred_.front();
    deferred_.pop_front();
    steps_.push_back(pipeline::backward_weight(stage, microbatch));
  }
  int num_deferred() const { return static_cast<int>(deferred_.size()); }

 private:
  std::vector<Action>& steps_;
  std::array<int, 2> stage_;
  std::array<int, 2> next_forward_{};
  std::array<int, 2> next_backward_{};
  std::deque<std::pair<int, int>> deferred_;
};

} // namespace pentatron::pipeline

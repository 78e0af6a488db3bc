/// Runs a lowered schedule: this rank's list of actions on its stages.
///
/// The same runtime serves one rank and many, every schedule, training and evaluation; it knows
/// nothing of tensor or data parallelism, which lie inside segments and the ParamStore.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/flow.h"
#include "pentatron/nn/segment.h"
#include "pentatron/nn/turns.h"
#include "pentatron/parallel/pipeline/channels.h"
#include "pentatron/parallel/pipeline/schedule/simulate.h"

namespace pentatron::pipeline {

/// What crosses from one stage to the next.
struct Boundaries {
  std::vector<nn::FlowSpec> flows;
  /// The flows that cross the boundary before each stage of the pipeline, ascending; none before
  /// the first.
  std::vector<std::vector<int>> before_stage;
  /// Of these, the ones whose gradients come back.
  std::vector<std::vector<int>> gradients_before_stage;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

struct RunOptions {
  std::map<std::string, double, std::less<>> loss_scales; ///< by loss term
  nn::GradientRows* gradient_rows = nullptr;     ///< receives the microbatch of a backward pass
  const nn::ExpertLoads* expert_loads = nullptr; ///< of training
  nn::Wanted wanted = {};
  nn::PassResults* results = nullptr; ///< additional results of one microbatch
  nn::KvCache* cache = nullptr;       ///< of generation
  const std::vector<nn::VariantRows>* variant_rows = nullptr; ///< see ForwardContext
  uint64_t seed = 0;                                          ///< of dropout
  bool training = false;
  bool check_finite = false;
  std::function<void()> forwards_done;      ///< after this rank's last F
  std::function<void()> weight_passes_done; ///< after each W
  /// The passes of an overlapped pair take turns; null: they run one after the other.
  nn::Turns* turns = nullptr;
  /// What ran when, in seconds of monotonic_s(). A pass counts from when its input is there; an
  /// overlapped pair is two passes, unless they take turns.
  std::vector<Interval>* intervals = nullptr;
};

class Runtime {
 public:
  /// `chunks` are the stages that this rank holds, ascending; the pipeline of `channels` has a rank
  /// for each of the schedule's. Chunks and store must outlive the runtime.
  Runtime(std::vector<const nn::Chunk*> chunks, nn::ParamStore& store, Channels channels,
          Boundaries boundaries);

  /// Runs the rank's actions and waits for its sends. Losses are added to `state` on the rank of
  /// the last stage. A schedule without backward passes keeps nothing for them. Throws Error if the
  /// schedule's ranks and stages are not those of this runtime.
  void run(const Schedule& lowered, const std::vector<nn::Microbatch>& microbatches,
           nn::StepState& state, const RunOptions& options);

 private:
  std::vector<const nn::Chunk*> chunks_;
  nn::ParamStore* store_;
  Channels channels_;
  Boundaries boundaries_;
};

} // namespace pentatron::pipeline

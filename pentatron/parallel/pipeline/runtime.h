/// Runs a lowered schedule: this rank's list of actions on its stages.
///
/// The same runtime serves one rank and many, every schedule, training and evaluation; it knows
/// nothing of tensor or data parallelism, which lie inside segments and the ParamStore.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/segment.h"
#include "pentatron/parallel/pipeline/schedule/simulate.h"

namespace pentatron::pipeline {

/// What every stage knows of a microbatch. So receivers know shapes without a message.
struct Microbatch {
  at::Tensor ids;    ///< [T] int64
  at::Tensor labels; ///< [T] int64, negative: no target
  nn::SequenceLayout layout;
};

/// What crosses from one stage to the next: hidden states [outer tokens of the layout, hidden].
struct Boundary {
  int64_t hidden = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

struct RunOptions {
  double loss_scale = 1;
  uint64_t seed = 0; ///< of dropout
  bool training = false;
  bool check_finite = false;
  std::function<void()> forwards_done;      ///< after this rank's last F
  std::function<void()> weight_passes_done; ///< after each W
  /// What ran when, in seconds of monotonic_s(). A pass counts from when its input is there; an
  /// overlapped pair is two passes.
  std::vector<Interval>* intervals = nullptr;
};

class Runtime {
 public:
  /// `chunks` are the stages that this rank holds, ascending; `pipeline` has a rank for each of the
  /// schedule's. All must outlive the runtime.
  Runtime(std::vector<const nn::Chunk*> chunks, nn::ParamStore& store, comm::Group pipeline,
          Boundary boundary);

  /// Runs the rank's actions and waits for its sends. Losses are added to `state` on the rank of
  /// the last stage. A schedule without backward passes keeps nothing for them. Throws Error if the
  /// schedule's ranks and stages are not those of this runtime.
  void run(const Schedule& lowered, const std::vector<Microbatch>& microbatches,
           nn::StepState& state, const RunOptions& options);

 private:
  std::vector<const nn::Chunk*> chunks_;
  nn::ParamStore* store_;
  comm::Group pipeline_;
  Boundary boundary_;
};

} // namespace pentatron::pipeline

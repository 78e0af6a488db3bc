/// One step over the flat shards of a store: gradient norm, clipping, the update rules, and the
/// working copy of the weights. Frozen shards have no part in it.
///
/// For bf16 models the optimizer holds fp32 master weights and writes the rounded copy in the same
/// pass; for fp32 and fp64 the model's values are the master weights.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"
#include "pentatron/nn/state_store.h"
#include "pentatron/optim/narrow_state.h"
#include "pentatron/optim/optimizer_config.h"
#include "pentatron/optim/param_group.h"
#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// Sum of the squared gradients of `shards`: summed over the ranks that hold parts or copies of the
/// model it counts every true element once. Ranks that hold the same shards by data parallelism
/// must not all add theirs. 0-dim double, on the shards' device (`device` without any).
at::Tensor counted_sum_of_squares(const std::vector<nn::Shard>& shards,
                                  at::Device device = at::kCPU);

/// Whether the gradients that the sum leaves out (copies of what other ranks count) hold a NaN or
/// infinity; of the shards with `all`, everything is left out. 0-dim bool.
at::Tensor has_nonfinite_copies(const std::vector<nn::Shard>& shards, bool all = false,
                                at::Device device = at::kCPU);

/// Name of the first parameter whose gradient holds a NaN or infinity, or empty.
std::string first_nonfinite_gradient(const std::vector<nn::Shard>& shards);

/// Elements of a rank's tensor, flattened, that are multiplied by a factor after their update.
struct ScaledRange {
  nn::FlatRange range;
  double factor = 1;
};
using ScaledRanges = std::map<const nn::Param*, std::vector<ScaledRange>>;

/// In checkpoints, the running mean of a parameter's weights: "<parameter>/ema".
inline constexpr const char* kAverage = "ema";

/// State that is kept out of memory between the steps: of the first elements of each shard, up to
/// this fraction of them. Of states of rows and columns, and of weights that are master weights
/// themselves, all stay.
struct AwayState {
  std::shared_ptr<nn::StateStore> store; ///< null: everything stays
  double fraction = 1;
  int64_t part = kPart; ///< elements of a part
  /// Elements of a part, of which up to three are in memory at once. Where a rule works on whole
  /// parameters, a part has parameters until it has so many elements; tensor ranks share the
  /// matrices among them.
  static constexpr int64_t kPart = int64_t{1} << 18;
  static constexpr int64_t kWholePart = int64_t{1} << 24;
};

class Optimizer {
 public:
  /// Updates what the trainable ones of `shards` refer to, each by its family's rule. Collective
  /// over `world`, the ranks of the run.
  Optimizer(const OptimizerConfig& config, std::vector<nn::Shard> shards, comm::Group world = {},
            AwayState away = {});
  Optimizer(const Optimizer&) = delete;

  /// Values may have changed behind the optimizer's back (initialisation, loading): takes them as
  /// master weights, and as the running mean of the weights.
  void adopt_values();

  /// `grad_scale` multiplies every gradient: the clip coefficient. Collective over the tensor
  /// ranks, and over the world where states have scales.
  /// `scaled`: master weights to be multiplied after the update, before the running mean.
  void step(double lr, double weight_decay, double grad_scale, const ScaledRanges& scaled = {});

  /// Whether queue_step() can be called: not if a rule, a state with scales or rounded by chance,
  /// or the running mean of the weights needs the host to know whether a step was made.
  bool can_queue() const;
  /// A step of which only the device knows `control` [2] double: grad_scale, and 1, or 0 if
  /// nothing is to be updated. The same numbers as step() if that is called, or not.
  void queue_step(double lr, double weight_decay, const at::Tensor& control);

  /// Updates so far; after queue_step() a read of the device.
  int64_t steps() const;
  /// By name: the number of steps before a parameter was first trained, if it is not 0. Equal on
  /// all ranks; contains the parameters of all ranks.
  using FirstSteps = std::map<std::string, int64_t>;
  const FirstSteps& first_steps() const { return first_steps_; }
  void set_steps(int64_t steps, FirstSteps first_steps = {});

  /// Whether the optimizer keeps a running mean of the weights.
  bool averages() const { return config_.ema_decay > 0; }
  /// Replaces the values by the running mean of the weights; a second call restores them. No other
  /// function may be called in between. Overwrites gradients.
  void swap_average();

  /// Bounds of the states that are stored with a scale; the same on all ranks.
  const StateBounds& bounds() const { return bounds_; }
  void set_bounds(const StateBounds::Bounds& bounds);

  /// Every tensor of the state, piece by piece: whose, and what it is ("exp_avg"). A piece of
  /// states of rows and columns has a parameter of its own, with the name of theirs.
  using StateFn = std::function<void(const nn::Shard&, const nn::Piece&, const std::string& what,
                                     const at::Tensor& data)>;
  void for_each_state(const StateFn& fn);

 private:
  struct Run { // neighbours in a shard that are updated at once
    nn::FlatRange range;
    std::vector<nn::Piece> pieces; // from range.begin
    Factors factors;
    int64_t first_step = 0;
  };
  struct Reduced { // a state of rows or columns of one piece
    std::string name;
    std::unique_ptr<nn::Param> of;
    at::Tensor data; // flat
  };
  struct State {
    ShardState shard;
    const Rule* rule = nullptr;
    std::vector<RuleState> kept; // of elements
    at::Tensor remainder;        // in place of master weights
    at::Tensor average;          // of the weights; undefined: none
    std::map<const nn::Param*, std::vector<Reduced>> reduced;
    std::vector<Run> runs;
    bool away = false; // vectors of its own are those of away_.store
  };
  struct Part { // of a run, updated at once
    const State* state = nullptr;
    const Run* run = nullptr;
    int64_t begin = 0, size = 0; // from run->range.begin
  };
  /// What the state has of a part: views of its vectors, or buffers.
  struct Stored {
    at::Tensor master, remainder, average;
    std::vector<at::Tensor> state;
  };
  void add_shard(nn::Shard shard);
  void make_state(nn::Shard shard, bool away);
  at::Tensor vector_like(const at::Tensor& values, at::ScalarType dtype, bool away) const;
  std::vector<Part> parts() const;
  Stored stored(const Part& part) const;
  /// Those that are not the model's values.
  static std::vector<at::Tensor*> own_vectors(const State& state, Stored& stored);
  void make_reduced(State& state, const RuleState& what) const;
  std::vector<std::string> scaled_names() const;
  /// The bounds after a step; keeps those before it.
  StateBounds grown(double weight_decay, double grad_scale) const;
  /// What a part has of the state `what`, in the accumulate type, and back in the type of the
  /// state.
  at::Tensor widen(const Part& part, const RuleState& what, const at::Tensor& stored) const;
  void narrow(const Part& part, const RuleState& what, int64_t step, const at::Tensor& stored,
              const at::Tensor& value) const;
  /// A mean in FP8 that is rounded by chance may be its smallest number where it should be less.
  /// So that this makes no large update, the mean of squares is raised to the square of that
  /// number; in FP8 it is never less.
  void raise_squares(const Part& part, const std::vector<at::Tensor>& states) const;
  std::vector<Run> runs_of(const State& state) const;
  void step_all(const std::function<Hyperparameters(const Run&)>& how) const;
  void step(const Part& part, const Hyperparameters& how, const Stored& stored) const;
  void step_part(const Part& part, const Hyperparameters& how, const Stored& stored) const;
  /// Multiplies what of scaled_ lies in a part of a run that begins at `begin`.
  void scale(const ShardState& part, const Run& run, int64_t begin) const;
  const Rule& rule_of(const nn::Param& param);

  OptimizerConfig config_;
  AwayState away_;
  std::map<std::string, std::unique_ptr<Rule>> rules_; // by nn::Param::rule
  std::deque<State> states_;
  const ScaledRanges* scaled_ = nullptr; // of the step at hand
  StateBounds bounds_, next_bounds_;     // before and after the step at hand
  int64_t steps_ = 0;
  at::Tensor queued_steps_; // in place of steps_ after queue_step(): [1] double on the device
  bool swapped_ = false;
  FirstSteps first_steps_;
};

/// max_norm / (norm + 1e-6) if that is below 1, else 1; 1 for max_norm 0.
double clip_coefficient(double max_norm, double norm);

} // namespace pentatron::optim

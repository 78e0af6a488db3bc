/// Update rules: AdamW, SGD, Lion, Muon and Adafactor, as objects that describe their state. The
/// table is in rules.cpp; checkpoints, resharding and the memory plan go by the description.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/nn/param_store.h"
#include "pentatron/optim/optimizer_config.h"

namespace pentatron::kernels {
struct UpdateControl;
}

namespace pentatron::optim {

/// A tensor that a rule keeps of every parameter, zero at first: one number for each element, or
/// for each row or column of its matrices (matrix_grid.h).
struct RuleState {
  enum class Extent : uint8_t { kElements, kRows, kColumns };
  /// A running mean keeps `decay` of itself in each step. One that may be stored with a scale
  /// (narrow_state.h) stays below a bound that becomes decay * bound + gain * (the largest
  /// |gradient|, or its square).
  struct Growth {
    double decay = 0, gain = 0;
    bool squared = false;
    bool decayed = false; ///< the gradient has weight_decay times the weights in it
  };
  std::string name; ///< in checkpoints "<parameter>/<name>"
  at::ScalarType dtype = at::kFloat;
  Growth growth = {};
  Extent extent = Extent::kElements;
};

/// A trainable shard, or a part of one, with what its rule keeps of it. All vectors are [n] and run
/// in parallel.
struct ShardState {
  nn::Shard shard;
  at::Tensor master;             ///< the values, or a copy of higher precision
  std::vector<at::Tensor> state; ///< those of elements, as Rule::state() lists them
  /// By piece: those of rows [stack, rows of the rank] and columns [stack, parts, columns of the
  /// rank], in the accumulate type. Empty for rules that keep none.
  std::vector<std::vector<at::Tensor>> reduced = {};

  /// Whether the values are a copy of lower precision of the master weights.
  bool has_copy() const { return master.scalar_type() != shard.values.scalar_type(); }
};

/// Of one step.
struct Hyperparameters {
  double lr = 0;
  double weight_decay = 0;
  double grad_scale = 1; ///< multiplies every gradient: the clip coefficient
  int64_t step = 1;      ///< from 1, of the parameters at hand
  /// If the device decides: what is in place of grad_scale and step, in its memory; and of its
  /// steps, those before the first of the parameters at hand.
  const kernels::UpdateControl* control = nullptr;
  int64_t first_step = 0;
};

class Rule {
 public:
  virtual ~Rule() = default;
  /// Whether it needs all elements of a tensor at once: those of a rank are not cut then.
  virtual bool needs_whole() const { return false; }
  /// Whether step() takes Hyperparameters::control.
  virtual bool takes_control() const { return false; }
  /// What it keeps of parameters whose accumulate type is `acc`.
  virtual std::vector<RuleState> state(at::ScalarType acc) const = 0;
  /// Updates the master weights, the state, and the values where those are a copy of lower
  /// precision. `part` has parameters that are updated alike, or pieces of them.
  virtual void step(const ShardState& part, const Hyperparameters& how) const = 0;
};

/// Whether a parameter is a matrix (or a stack of them) that maps features to features.
bool is_matrix(const nn::ShardSpec& spec);

/// Returns the name of a parameter's rule: the configured one, with two exceptions. muon and
/// adaptive_muon use AdamW for parameters that are not matrices. adafactor uses a rule with one
/// number per element for parameters with fewer than 2 dimensions.
std::string rule_name(const OptimizerConfig& config, const nn::ShardSpec& spec);

/// The rule that a parameter names (nn::Param::rule).
std::unique_ptr<Rule> make_rule(const OptimizerConfig& config, std::string_view name);

/// Sets for every parameter its update rule and whether the rule needs the whole tensor. Call it
/// before the parameters have storage.
void plan_rules(nn::ParamList& params, const OptimizerConfig& config);

/// Whether master weights are kept as remainders (remainder.h).
bool keeps_remainder(const OptimizerConfig& config, at::ScalarType dtype);

/// Type in which a rule keeps a running mean.
at::ScalarType state_dtype(StateDtype dtype, at::ScalarType acc);

/// Bytes of a trained element of a parameter on a rank at `where`: its state, a master copy if
/// `dtype` is of lower precision, and the running mean of the weights.
double state_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec, at::ScalarType dtype,
                   const nn::Coordinates& where = {});
/// Of these, the bytes that are kept in vectors of the elements: what AwayState moves.
double vector_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec, at::ScalarType dtype);

/// Elements whose narrow state, and whose master weights, are in the accumulate type at once; where
/// a rule needs whole parameters, those of a batch are (AwayState::kWholePart).
inline constexpr int64_t kWidened = int64_t{1} << 18;

/// What an update holds in bytes: `batch` for each element of a batch of whole parameters, and
/// `working` for one parameter.
struct UpdateBytes {
  double batch = 0, working = 0;
};
UpdateBytes update_bytes(const OptimizerConfig& config, const nn::ShardSpec& spec,
                         at::ScalarType dtype, const nn::Coordinates& where = {});

} // namespace pentatron::optim

/// Learning rate and weight decay as pure functions of the step: warm-up, then a decay style, as
/// Megatron-LM defines them.
///
/// Iteration i (from 1) uses n = i, or, where the run is measured in samples, n = the samples
/// consumed up to and with iteration i. Free of LibTorch. Source: Megatron-LM
/// optimizer_param_scheduler.py; WSD: Hu et al. 2024 (arXiv:2404.06395), sec. 4; minus_sqrt: Hägele
/// et al. 2024 (arXiv:2405.18392).
#pragma once

#include <optional>

#include "pentatron/config/field.h"

namespace pentatron::optim {

enum class LrDecayStyle : uint8_t { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
constexpr auto enum_names(LrDecayStyle) {
  using E = LrDecayStyle;
  return std::array{config::name(E::kConstant, "constant"),
                    config::name(E::kLinear, "linear"),
                    config::name(E::kCosine, "cosine"),
                    config::name(E::kInverseSquareRoot, "inverse-square-root"),
                    config::name(E::kWsd, "WSD"),
                    config::name(E::kWsd, "wsd")};
}

/// How WSD anneals after its stable part.
enum class WsdDecayStyle : uint8_t { kExponential, kLinear, kCosine, kMinusSqrt };
constexpr auto enum_names(WsdDecayStyle) {
  using E = WsdDecayStyle;
  return std::array{config::name(E::kExponential, "exponential"),
                    config::name(E::kLinear, "linear"), config::name(E::kCosine, "cosine"),
                    config::name(E::kMinusSqrt, "minus_sqrt")};
}

enum class WeightDecayIncrStyle : uint8_t { kConstant, kLinear, kCosine };
constexpr auto enum_names(WeightDecayIncrStyle) {
  using E = WeightDecayIncrStyle;
  return std::array{config::name(E::kConstant, "constant"), config::name(E::kLinear, "linear"),
                    config::name(E::kCosine, "cosine")};
}

/// The section `scheduler`. The highest and lowest rate and the weight decay are of the section
/// `optimizer`.
struct SchedulerConfig {
  LrDecayStyle lr_decay_style = LrDecayStyle::kCosine;
  std::optional<int64_t> lr_decay_iters = {};
  std::optional<int64_t> lr_decay_samples = {};
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction = {};
  double lr_warmup_init = 0.0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::optional<int64_t> lr_wsd_decay_iters = {};
  std::optional<int64_t> lr_wsd_decay_samples = {};
  std::optional<double> start_weight_decay = {};
  std::optional<double> end_weight_decay = {};
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::kConstant;

  static constexpr auto fields() {
    using C = SchedulerConfig;
    return std::tuple{
        config::field("lr_decay_style", &C::lr_decay_style,
                      "shape of the learning rate schedule after warmup; WSD: constant until a "
                      "final decay (warmup, stable, decay); inverse-square-root: optimizer.lr * "
                      "sqrt(warmup / step), counted in samples as in Megatron, so that without "
                      "warmup the first rate is optimizer.lr / sqrt(train.global_batch_size)"),
        config::field("lr_decay_iters", &C::lr_decay_iters,
                      "iteration at which the learning rate reaches optimizer.min_lr; default: the "
                      "end of the run")
            .positive()
            .unit("iterations"),
        config::field("lr_decay_samples", &C::lr_decay_samples,
                      "number of samples after which the learning rate reaches optimizer.min_lr, "
                      "if train.train_samples is set; default: the end of the run")
            .positive()
            .unit("samples"),
        config::field("lr_warmup_iters", &C::lr_warmup_iters,
                      "length of the linear learning rate warmup")
            .min(0)
            .unit("iterations"),
        config::field(
            "lr_warmup_samples", &C::lr_warmup_samples,
            "length of the linear learning rate warmup in samples, if train.train_samples is set")
            .min(0)
            .unit("samples"),
        config::field("lr_warmup_fraction", &C::lr_warmup_fraction,
                      "length of the learning rate warmup as a fraction of the decay length")
            .min(0)
            .less_than(1),
        config::field("lr_warmup_init", &C::lr_warmup_init, "learning rate at the start of warmup")
            .min(0),
        config::field("lr_wsd_decay_style", &C::lr_wsd_decay_style,
                      "shape of the final decay in the WSD schedule"),
        config::field("lr_wsd_decay_iters", &C::lr_wsd_decay_iters,
                      "length of the final decay in the WSD schedule")
            .positive()
            .unit("iterations"),
        config::field("lr_wsd_decay_samples", &C::lr_wsd_decay_samples,
                      "length of the final decay in the WSD schedule in samples, if "
                      "train.train_samples is set")
            .positive()
            .unit("samples"),
        config::field(
            "start_weight_decay", &C::start_weight_decay,
            "weight decay at the start of the run, if weight_decay_incr_style is not constant")
            .min(0),
        config::field(
            "end_weight_decay", &C::end_weight_decay,
            "weight decay at the end of the run, if weight_decay_incr_style is not constant")
            .min(0),
        config::field("weight_decay_incr_style", &C::weight_decay_incr_style,
                      "how the weight decay changes from start_weight_decay to end_weight_decay")};
  }
  /// The rules that need no other section.
  void validate(config::Violations& violations, std::string_view path) const;
};

/// How long the run is; exactly one of the two counts, and every length of the scheduler is in the
/// same unit.
struct TrainLength {
  int64_t iters = 0;
  int64_t samples = 0;
  int64_t batch = 1; ///< samples of an iteration
  bool by_samples() const { return samples > 0; }
};

/// A learning rate with its lengths resolved, all in one unit.
struct LrCurve {
  LrDecayStyle style = LrDecayStyle::kConstant;
  double max_lr = 0;
  double min_lr = 0;
  double init_lr = 0;
  double warmup = 0;
  double decay = 1;
  WsdDecayStyle wsd_style = WsdDecayStyle::kExponential;
  double wsd_decay = 0;
  double samples_per_step = 1; ///< a step of n

  double at(int64_t n) const;
};

struct WeightDecayCurve {
  WeightDecayIncrStyle style = WeightDecayIncrStyle::kConstant;
  double start = 0;
  double end = 0;
  double length = 1; ///< of the run

  double at(int64_t n) const;
};

/// The rules between `scheduler`, `optimizer` and the length of the run.
void check_scheduler(const SchedulerConfig& scheduler, double max_lr, double min_lr,
                     const TrainLength& length, config::Violations& violations,
                     std::string_view path = "scheduler");

/// Throws ConfigError where check_scheduler finds a violation.
LrCurve lr_curve(const SchedulerConfig& scheduler, double max_lr, double min_lr,
                 const TrainLength& length);
WeightDecayCurve weight_decay_curve(const SchedulerConfig& scheduler, double weight_decay,
                                    const TrainLength& length);

} // namespace pentatron::optim

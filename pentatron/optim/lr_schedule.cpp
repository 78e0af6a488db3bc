#include "pentatron/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pentatron/base/error.h"

namespace pentatron::optim {

namespace {

double wsd_coefficient(WsdDecayStyle style, double q) {
  switch (style) {
  case WsdDecayStyle::kLinear:
    return 1.0 - q;
  case WsdDecayStyle::kCosine:
    return 0.5 * (std::cos(std::numbers::pi * q) + 1.0);
  case WsdDecayStyle::kExponential:
    return 2.0 * std::pow(0.5, q) - 1.0;
  case WsdDecayStyle::kMinusSqrt:
    return 1.0 - std::sqrt(q);
  }
  return 0;
}

/// The scheduler's lengths in the unit of the run.
struct Lengths {
  double decay = 0;
  double warmup = 0;
  double wsd = 0;
};

Lengths lengths(const SchedulerConfig& s, const TrainLength& run) {
  const bool samples = run.by_samples();
  Lengths l;
  l.decay = static_cast<double>(samples ? s.lr_decay_samples.value_or(run.samples)
                                        : s.lr_decay_iters.value_or(run.iters));
  l.warmup = s.lr_warmup_fraction
                 ? *s.lr_warmup_fraction * l.decay
                 : static_cast<double>(samples ? s.lr_warmup_samples : s.lr_warmup_iters);
  l.wsd =
      static_cast<double>((samples ? s.lr_wsd_decay_samples : s.lr_wsd_decay_iters).value_or(0));
  return l;
}

void check_units(const SchedulerConfig& s, const TrainLength& run, config::Violations& violations,
                 std::string_view path) {
  const bool samples = run.by_samples();
  const auto refuse = [&](bool set, std::string_view name, std::string_view instead) {
    const bool optional = !name.starts_with("lr_warmup");
    if (!set) return;
    violations.add(
        config::join(path, name),
        fmt::format("{} is set, but the length of the run is given in {}; the key for that is {}",
                    config::join(path, name),
                    samples ? "samples (train.train_samples)" : "iterations (train.train_iters)",
                    config::join(path, instead)),
        fmt::format("{}={}", config::join(path, name), optional ? "null" : "0"));
  };
  if (samples) {
    refuse(s.lr_decay_iters.has_value(), "lr_decay_iters", "lr_decay_samples");
    refuse(s.lr_warmup_iters > 0, "lr_warmup_iters", "lr_warmup_samples");
    refuse(s.lr_wsd_decay_iters.has_value(), "lr_wsd_decay_iters", "lr_wsd_decay_samples");
  } else {
    refuse(s.lr_decay_samples.has_value(), "lr_decay_samples", "lr_decay_iters");
    refuse(s.lr_warmup_samples > 0, "lr_warmup_samples", "lr_warmup_iters");
    refuse(s.lr_wsd_decay_samples.has_value(), "lr_wsd_decay_samples", "lr_wsd_decay_iters");
  }
}

} // namespace

void SchedulerConfig::validate(config::Violations& violations, std::string_view path) const {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  if (lr_warmup_fraction && (lr_warmup_iters > 0 || lr_warmup_samples > 0)) {
    const char* other = lr_warmup_iters > 0 ? "lr_warmup_iters" : "lr_warmup_samples";
    violations.add(key("lr_warmup_fraction"),
                   fmt::format("{}={} and {} both set the length of the warmup",
                               key("lr_warmup_fraction"), *lr_warmup_fraction, key(other)),
                   key("lr_warmup_fraction") + "=null");
  }
  const bool constant = weight_decay_incr_style == WeightDecayIncrStyle::kConstant;
  const bool both = start_weight_decay && end_weight_decay;
  if (constant && (start_weight_decay || end_weight_decay)) {
    violations.add(key("weight_decay_incr_style"),
                   fmt::format("{}=constant uses optimizer.weight_decay, not a start and end value",
                               key("weight_decay_incr_style")),
                   key("weight_decay_incr_style") + "=linear");
  } else if (!constant && !both) {
    const char* missing = start_weight_decay ? "end_weight_decay" : "start_weight_decay";
    violations.add(key("weight_decay_incr_style"),
                   fmt::format("{}={} needs {}", key("weight_decay_incr_style"),
                               config::to_string(weight_decay_incr_style), key(missing)),
                   key(missing) + "=0.1");
  }
}

void check_scheduler(const SchedulerConfig& scheduler, double max_lr, double min_lr,
                     const TrainLength& length, config::Violations& violations,
                     std::string_view path) {
  const auto key = [&](std::string_view name) { return config::join(path, name); };
  if (length.iters <= 0 && length.samples <= 0) {
    violations.add("train.train_iters",
                   "the run has no length: train.train_iters and "
                   "train.train_samples are not set",
                   "train.train_iters=1000");
    return;
  }
  if (length.iters > 0 && length.samples > 0) {
    violations.add("train.train_samples", "train.train_iters and train.train_samples are both set",
                   "train.train_samples=null");
    return;
  }
  check_units(scheduler, length, violations, path);
  if (min_lr > max_lr) {
    violations.add("optimizer.min_lr",
                   fmt::format("optimizer.min_lr={} is above optimizer.lr={}", min_lr, max_lr),
                   fmt::format("optimizer.min_lr={}", max_lr));
  }
  if (scheduler.lr_warmup_init > max_lr) {
    violations.add(key("lr_warmup_init"),
                   fmt::format("{}={} is above optimizer.lr={}", key("lr_warmup_init"),
                               scheduler.lr_warmup_init, max_lr),
                   fmt::format("{}={}", key("lr_warmup_init"), max_lr));
  }
  const Lengths l = lengths(scheduler, length);
  const char* unit = length.by_samples() ? "samples" : "iters";
  if (l.warmup >= l.decay && l.decay > 0) {
    const std::string name = key(fmt::format("lr_warmup_{}", unit));
    violations.add(name,
                   fmt::format("{}={} is not shorter than the decay length of {} {}", name,
                               l.warmup, l.decay, unit),
                   fmt::format("{}={}", name, static_cast<int64_t>(l.decay) - 1));
  }
  if (scheduler.lr_decay_style == LrDecayStyle::kWsd) {
    const std::string name = key(fmt::format("lr_wsd_decay_{}", unit));
    const double longest = l.decay - std::ceil(l.warmup);
    if (l.wsd <= 0) {
      violations.add(name, fmt::format("{}=WSD needs {}", key("lr_decay_style"), name),
                     fmt::format("{}={}", name, std::max(1.0, std::floor(l.decay / 10))));
    } else if (l.wsd > longest && longest > 0) {
      violations.add(name,
                     fmt::format("{}={} is longer than the {} {} after the warmup", name, l.wsd,
                                 longest, unit),
                     fmt::format("{}={}", name, longest));
    }
  }
}

LrCurve lr_curve(const SchedulerConfig& scheduler, double max_lr, double min_lr,
                 const TrainLength& length) {
  config::Violations violations;
  check_scheduler(scheduler, max_lr, min_lr, length, violations);
  violations.throw_if_any();
  const Lengths l = lengths(scheduler, length);
  return {.style = scheduler.lr_decay_style,
          .max_lr = max_lr,
          .min_lr = min_lr,
          .init_lr = scheduler.lr_warmup_init,
          .warmup = l.warmup,
          .decay = l.decay,
          .wsd_style = scheduler.lr_wsd_decay_style,
          .wsd_decay = l.wsd,
          .samples_per_step = length.by_samples() ? 1.0 : static_cast<double>(length.batch)};
}

WeightDecayCurve weight_decay_curve(const SchedulerConfig& scheduler, double weight_decay,
                                    const TrainLength& length) {
  config::Violations violations;
  scheduler.validate(violations, "scheduler");
  violations.throw_if_any();
  return {.style = scheduler.weight_decay_incr_style,
          .start = scheduler.start_weight_decay.value_or(weight_decay),
          .end = scheduler.end_weight_decay.value_or(weight_decay),
          .length = static_cast<double>(length.by_samples() ? length.samples : length.iters)};
}

double LrCurve::at(int64_t n) const {
  const auto step = static_cast<double>(n);
  if (warmup > 0 && step <= warmup) return init_lr + (max_lr - init_lr) * step / warmup;
  if (style == LrDecayStyle::kConstant) return max_lr;
  if (step > decay) return min_lr;
  if (style == LrDecayStyle::kInverseSquareRoot) {
    // Megatron counts samples, which matters only without a warmup.
    return std::max(min_lr, max_lr * std::sqrt(std::max(warmup * samples_per_step, 1.0)) /
                                std::sqrt(std::max(step * samples_per_step, 1.0)));
  }
  const double ratio = (step - warmup) / (decay - warmup);
  double coefficient = 1.0;
  if (style == LrDecayStyle::kLinear) {
    coefficient = 1.0 - ratio;
  } else if (style == LrDecayStyle::kCosine) {
    coefficient = 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0);
  } else if (const double anneal_start = decay - wsd_decay; step > anneal_start) {
    coefficient = wsd_coefficient(wsd_style, (step - anneal_start) / wsd_decay);
  }
  return min_lr + coefficient * (max_lr - min_lr);
}

double WeightDecayCurve::at(int64_t n) const {
  const auto step = static_cast<double>(n);
  if (style == WeightDecayIncrStyle::kConstant || step > length) return end;
  const double ratio = step / length;
  const double coefficient = style == WeightDecayIncrStyle::kLinear
                                 ? ratio
                                 : 0.5 * (std::cos(std::numbers::pi * (1.0 - ratio)) + 1.0);
  return start + coefficient * (end - start);
}

} // namespace pentatron::optim

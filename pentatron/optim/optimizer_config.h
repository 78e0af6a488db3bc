/// The section `optimizer`. Keys keep Megatron's spelling.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::optim {

enum class OptimizerKind : uint8_t { kAdam, kSgd, kLion };
constexpr auto enum_names(OptimizerKind) {
  return std::array{config::name(OptimizerKind::kAdam, "adam"),
                    config::name(OptimizerKind::kSgd, "sgd"),
                    config::name(OptimizerKind::kLion, "lion")};
}

/// Which rule updates the weights, and with what; rules.h has the papers.
struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double lr = 3e-4;
  double min_lr = 3e-5;
  double weight_decay = 0.1;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9;
  double lion_beta2 = 0.99;
  double clip_grad = 1.0;

  static constexpr auto fields() {
    using C = OptimizerConfig;
    using config::field;
    return std::tuple{
        field("optimizer", &C::optimizer,
              "optimization algorithm; adam is AdamW, with decoupled weight decay; lion updates by "
              "the sign of a running mean, and needs a learning rate 3 to 10 times smaller")
            .on_resume(config::OnResume::kState),
        field("lr", &C::lr, "peak learning rate, reached after warmup").non_negative(),
        field("min_lr", &C::min_lr, "minimum learning rate, reached at the end of the decay")
            .non_negative(),
        field("weight_decay", &C::weight_decay,
              "weight decay of weights with 2 or more dimensions; norms and biases are not decayed")
            .non_negative(),
        field("adam_beta1", &C::adam_beta1, "AdamW: decay rate of the running mean of the gradient")
            .min(0)
            .less_than(1),
        field("adam_beta2", &C::adam_beta2,
              "AdamW: decay rate of the running mean of the squared gradient")
            .min(0)
            .less_than(1),
        field("adam_eps", &C::adam_eps,
              "AdamW: value added to the denominator for numerical stability")
            .positive(),
        field("sgd_momentum", &C::sgd_momentum, "SGD: momentum").min(0).less_than(1),
        field("sgd_nesterov", &C::sgd_nesterov, "SGD: use Nesterov momentum"),
        field("lion_beta1", &C::lion_beta1,
              "Lion: weight of the running mean in the sum whose sign is the update")
            .min(0)
            .less_than(1),
        field("lion_beta2", &C::lion_beta2, "Lion: decay rate of the running mean of the gradient")
            .min(0)
            .less_than(1),
        field(
            "clip_grad", &C::clip_grad,
            "maximum global gradient norm; larger gradients are scaled down to it; 0: no clipping")
            .non_negative()};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::optim

/// The section `mixed_precision`. Keys have Megatron's names, recipes the names of Megatron Bridge.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::trainer {

enum class PrecisionRecipe : uint8_t {
  kNone,
  kBf16,
  kFp16,
  kBf16Fp8Delayed,
  kBf16Fp8Tensorwise,
  kBf16Fp8Blockwise,
  kBf16Mxfp8,
  kBf16Nvfp4,
  kFp16Fp8Delayed,
  kFp16Fp8Tensorwise,
  kFp16Fp8Blockwise,
  kFp16Mxfp8
};
constexpr auto enum_names(PrecisionRecipe) {
  using enum PrecisionRecipe;
  return std::array{config::name(kNone, "none"),
                    config::name(kBf16, "bf16_mixed"),
                    config::name(kFp16, "fp16_mixed"),
                    config::name(kBf16Fp8Delayed, "bf16_with_fp8_delayed_scaling_mixed"),
                    config::name(kBf16Fp8Tensorwise, "bf16_with_fp8_current_scaling_mixed"),
                    config::name(kBf16Fp8Blockwise, "bf16_with_fp8_subchannel_scaling_mixed"),
                    config::name(kBf16Mxfp8, "bf16_with_mxfp8_mixed"),
                    config::name(kBf16Nvfp4, "bf16_with_nvfp4_mixed"),
                    config::name(kFp16Fp8Delayed, "fp16_with_fp8_delayed_scaling_mixed"),
                    config::name(kFp16Fp8Tensorwise, "fp16_with_fp8_current_scaling_mixed"),
                    config::name(kFp16Fp8Blockwise, "fp16_with_fp8_subchannel_scaling_mixed"),
                    config::name(kFp16Mxfp8, "fp16_with_mxfp8_mixed")};
}

enum class Fp8Format : uint8_t { kNone, kE4m3, kHybrid };
constexpr auto enum_names(Fp8Format) {
  return std::array{config::name(Fp8Format::kNone, "none"), config::name(Fp8Format::kE4m3, "e4m3"),
                    config::name(Fp8Format::kHybrid, "hybrid")};
}

enum class Fp8Recipe : uint8_t { kTensorwise, kDelayed, kBlockwise, kMxfp8 };
constexpr auto enum_names(Fp8Recipe) {
  return std::array{config::name(Fp8Recipe::kTensorwise, "tensorwise"),
                    config::name(Fp8Recipe::kDelayed, "delayed"),
                    config::name(Fp8Recipe::kBlockwise, "blockwise"),
                    config::name(Fp8Recipe::kMxfp8, "mxfp8")};
}

enum class Fp4Format : uint8_t { kNone, kE2m1 };
constexpr auto enum_names(Fp4Format) {
  return std::array{config::name(Fp4Format::kNone, "none"), config::name(Fp4Format::kE2m1, "e2m1")};
}

enum class AmaxAlgorithm : uint8_t { kMostRecent, kMax };
constexpr auto enum_names(AmaxAlgorithm) {
  return std::array{config::name(AmaxAlgorithm::kMostRecent, "most_recent"),
                    config::name(AmaxAlgorithm::kMax, "max")};
}

/// Bounds of loss scales, so that fp32 holds them and their reciprocals.
inline constexpr double kLeastLossScale = 1e-37, kMostLossScale = 1e37;

struct MixedPrecisionConfig {
  PrecisionRecipe recipe = PrecisionRecipe::kNone;
  Fp8Format fp8 = Fp8Format::kNone;
  Fp8Recipe fp8_recipe = Fp8Recipe::kTensorwise;
  int64_t fp8_margin = 0;
  int64_t fp8_amax_history_len = 1;
  AmaxAlgorithm fp8_amax_compute_algo = AmaxAlgorithm::kMostRecent;
  Fp4Format fp4 = Fp4Format::kNone;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1;
  int64_t num_layers_at_end_in_bf16 = 1;
  std::optional<double> loss_scale;
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;

  static constexpr auto fields() {
    using C = MixedPrecisionConfig;
    using config::field;
    return std::tuple{
        field("recipe", &C::recipe,
              "name of a Megatron Bridge recipe that sets dtype, the other keys of mixed_precision "
              "and ddp.grad_reduce_in_fp32 together; keys that are given explicitly keep their "
              "value, but must not contradict the name of the recipe: bf16_mixed is an error with "
              "dtype=fp16"),
        field("fp8", &C::fp8,
              "compute the matrix products of linear layers and experts in FP8; e4m3: all operands "
              "in e4m3; hybrid: gradients in e5m2, which has a larger range, other operands in "
              "e4m3; other operations use dtype"),
        field("fp8_recipe", &C::fp8_recipe,
              "scales of FP8 numbers; tensorwise: one scale per tensor, from its largest value; "
              "delayed: one scale per tensor, from the largest values of earlier steps; blockwise: "
              "one scale per block of 1 x 128 values, for weights of 128 x 128; mxfp8: one scale, "
              "a power of two, per 32 values"),
        field("fp8_margin", &C::fp8_margin,
              "fp8_recipe=delayed: divide scales by 2 to the power of this number, which "
              "leaves headroom for values that grow")
            .range(0, 64),
        field("fp8_amax_history_len", &C::fp8_amax_history_len,
              "fp8_recipe=delayed: number of steps whose largest absolute values are stored for "
              "each tensor")
            .range(1, 1 << 20)
            .unit("steps"),
        field("fp8_amax_compute_algo", &C::fp8_amax_compute_algo,
              "fp8_recipe=delayed: which of the stored largest values determines the scale; "
              "most_recent: the value of the last step; max: the maximum"),
        field("fp4", &C::fp4,
              "compute the matrix products of linear layers in FP4; e2m1: NVFP4, with one scale "
              "per 16 values (16 x 16 for weights) and one per tensor, stochastic rounding of "
              "gradients, and a random Hadamard transform of the operands of weight gradients"),
        field("first_last_layers_bf16", &C::first_last_layers_bf16,
              "compute the first and last layers in dtype instead of FP8 or FP4"),
        field("num_layers_at_start_in_bf16", &C::num_layers_at_start_in_bf16,
              "first_last_layers_bf16=true: number of layers at the start of the model to compute "
              "in dtype")
            .min(0)
            .unit("layers"),
        field("num_layers_at_end_in_bf16", &C::num_layers_at_end_in_bf16,
              "first_last_layers_bf16=true: number of layers at the end of the model to compute in "
              "dtype")
            .min(0)
            .unit("layers"),
        field("loss_scale", &C::loss_scale,
              "constant factor by which the loss is multiplied before the backward pass and "
              "gradients are divided before the update; default: a dynamic loss scale with "
              "dtype=fp16, otherwise none")
            .range(kLeastLossScale, kMostLossScale),
        field("initial_loss_scale", &C::initial_loss_scale,
              "dynamic loss scale at the start of the run")
            .range(kLeastLossScale, kMostLossScale),
        field("min_loss_scale", &C::min_loss_scale, "minimum of the dynamic loss scale")
            .range(kLeastLossScale, kMostLossScale),
        field("loss_scale_window", &C::loss_scale_window,
              "number of consecutive iterations without overflow after which the dynamic loss "
              "scale is doubled")
            .positive()
            .unit("iterations"),
        field("hysteresis", &C::hysteresis,
              "number of overflows after which the dynamic loss scale is halved, also at each "
              "further overflow; the count restarts when the scale is doubled")
            .positive()};
  }
  bool low_precision() const { return fp8 != Fp8Format::kNone || fp4 != Fp4Format::kNone; }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::trainer

/// The section `optimizer`. Keys have Megatron's names.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "pentatron/config/field.h"

namespace pentatron::optim {

enum class OptimizerKind : uint8_t { kAdam, kSgd, kLion, kMuon, kAdaptiveMuon, kAdafactor };
constexpr auto enum_names(OptimizerKind) {
  return std::array{config::name(OptimizerKind::kAdam, "adam"),
                    config::name(OptimizerKind::kSgd, "sgd"),
                    config::name(OptimizerKind::kLion, "lion"),
                    config::name(OptimizerKind::kMuon, "muon"),
                    config::name(OptimizerKind::kAdaptiveMuon, "adaptive_muon"),
                    config::name(OptimizerKind::kAdafactor, "adafactor")};
}

/// In what an optimizer keeps running means; fp32 is fp64 in an fp64 run, fp8 is E4M3. What the
/// narrow types hold and how means are rounded is in narrow_state.h.
enum class StateDtype : uint8_t { kFp32, kBf16, kFp16, kFp8 };
constexpr auto enum_names(StateDtype) {
  return std::array{config::name(StateDtype::kFp32, "fp32"),
                    config::name(StateDtype::kBf16, "bf16"),
                    config::name(StateDtype::kFp16, "fp16"), config::name(StateDtype::kFp8, "fp8")};
}

/// Weights that a run has of a model: those that it trains, or their running mean.
enum class WeightsKind : uint8_t { kModel, kEma };
constexpr auto enum_names(WeightsKind) {
  return std::array{config::name(WeightsKind::kModel, "model"),
                    config::name(WeightsKind::kEma, "ema")};
}

/// The second moment of adaptive Muon: of each element, or of each row or column.
enum class Moment2Method : uint8_t { kAdaMuon, kNorMuon };
constexpr auto enum_names(Moment2Method) {
  return std::array{config::name(Moment2Method::kAdaMuon, "adamuon"),
                    config::name(Moment2Method::kNorMuon, "normuon")};
}

/// What Muon multiplies an orthogonal update of a matrix [rows, columns] by.
enum class MuonScale : uint8_t { kOriginal, kMatchRmsAdamW, kSpectral, kUnitRmsNorm };
constexpr auto enum_names(MuonScale) {
  return std::array{config::name(MuonScale::kOriginal, "original"),
                    config::name(MuonScale::kMatchRmsAdamW, "match_rms_adamw"),
                    config::name(MuonScale::kSpectral, "spectral"),
                    config::name(MuonScale::kUnitRmsNorm, "unit_rms_norm")};
}

/// The polynomials of Newton-Schulz iterations; newton_schulz.h has the sources.
enum class MuonCoefficients : uint8_t { kSimple, kQuintic, kPolarExpress };
constexpr auto enum_names(MuonCoefficients) {
  return std::array{config::name(MuonCoefficients::kSimple, "simple"),
                    config::name(MuonCoefficients::kQuintic, "quintic"),
                    config::name(MuonCoefficients::kPolarExpress, "polar_express")};
}

/// What Muon takes for a matrix where tensor ranks hold parts of it.
enum class MuonTensorMode : uint8_t { kExact, kBlockwise };
constexpr auto enum_names(MuonTensorMode) {
  return std::array{config::name(MuonTensorMode::kExact, "exact"),
                    config::name(MuonTensorMode::kBlockwise, "blockwise")};
}

/// Of learning rates: more is no number in fp32.
inline constexpr double kMaxRate = 1e30;

/// Which rule updates the weights, and with what; rules.h has the papers.
struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  double lr = 3e-4;
  double min_lr = 3e-5;
  double weight_decay = 0.1;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  bool decoupled_weight_decay = true;
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9;
  double lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  MuonScale muon_scale_mode = MuonScale::kMatchRmsAdamW;
  double muon_extra_scale_factor = 1;
  bool muon_split_qkv = true;
  int64_t muon_num_ns_steps = 5;
  MuonCoefficients muon_coefficient_type = MuonCoefficients::kSimple;
  double muon_eps = 1e-7;
  bool muon_bf16 = false;
  MuonTensorMode muon_tp_mode = MuonTensorMode::kExact;
  Moment2Method adaptive_muon_moment2_method = Moment2Method::kAdaMuon;
  double adaptive_muon_beta2 = 0.95;
  double adaptive_muon_eps = 1e-8;
  double adafactor_beta1 = 0;
  double adafactor_decay_rate = 0.8;
  double adafactor_eps = 1e-30;
  double adafactor_min_scale = 1e-3;
  double adafactor_clip_threshold = 1;
  bool adafactor_scale_parameter = true;
  bool adafactor_relative_step = false;
  StateDtype exp_avg_dtype = StateDtype::kFp32;
  StateDtype exp_avg_sq_dtype = StateDtype::kFp32;
  bool store_param_remainders = false;
  double ema_decay = 0;
  std::vector<std::string> param_groups;
  double clip_grad = 1.0;
  double grad_norm_skip_threshold = 0;
  bool qk_clip = false;
  double qk_clip_threshold = 100;
  double qk_clip_alpha = 0.5;

  static constexpr auto fields() {
    using C = OptimizerConfig;
    using config::field;
    return std::tuple{
        field("optimizer", &C::optimizer,
              "optimization algorithm; adam: AdamW, with decoupled weight decay; lion: updates by "
              "the sign of a running mean, needs a learning rate 3 to 10 times smaller than adam; "
              "muon: updates matrices by the orthogonal factor of a running mean, and uses adam "
              "for embeddings, the output layer, norms and biases; adaptive_muon: muon with the "
              "orthogonal factor divided by the root of its running mean square; adafactor: stores "
              "mean squares only for the rows and columns of matrices")
            .on_resume(config::OnResume::kState),
        field("lr", &C::lr, "peak learning rate, reached after warmup").range(0, kMaxRate),
        field("min_lr", &C::min_lr, "minimum learning rate, reached at the end of the decay")
            .range(0, kMaxRate),
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
        field("decoupled_weight_decay", &C::decoupled_weight_decay,
              "AdamW: decay the weights themselves; false: add weight_decay times the weights to "
              "the gradient, which is Adam with an L2 penalty"),
        field("sgd_momentum", &C::sgd_momentum, "SGD: momentum").min(0).less_than(1),
        field("sgd_nesterov", &C::sgd_nesterov, "SGD: use Nesterov momentum"),
        field("lion_beta1", &C::lion_beta1,
              "Lion: weight of the running mean in the sum whose sign is the update")
            .min(0)
            .less_than(1),
        field("lion_beta2", &C::lion_beta2, "Lion: decay rate of the running mean of the gradient")
            .min(0)
            .less_than(1),
        field("muon_momentum", &C::muon_momentum,
              "Muon: decay rate of the running mean of the gradient")
            .min(0)
            .less_than(1),
        field("muon_nesterov", &C::muon_nesterov, "Muon: use Nesterov momentum"),
        field("muon_scale_mode", &C::muon_scale_mode,
              "Muon: factor applied to the orthogonal update of a matrix, from its rows (outputs) "
              "and columns (inputs); original: sqrt(max(1, rows/columns)); match_rms_adamw: 0.2 "
              "sqrt(max(rows, columns)), which suits learning rates for AdamW; spectral: "
              "sqrt(max(rows, columns)); unit_rms_norm: sqrt(rows/columns)"),
        field("muon_extra_scale_factor", &C::muon_extra_scale_factor,
              "Muon: additional factor applied to the update")
            .positive(),
        field("muon_split_qkv", &C::muon_split_qkv,
              "Muon: treat the query, key and value projections as three matrices; false: as one "
              "matrix"),
        field("muon_num_ns_steps", &C::muon_num_ns_steps,
              "Muon: number of Newton-Schulz iterations, which make the update nearly orthogonal")
            .min(1),
        field("muon_coefficient_type", &C::muon_coefficient_type,
              "Muon: polynomials of the Newton-Schulz iterations; simple: the same polynomial in "
              "every iteration; quintic: five tuned polynomials; polar_express: eight polynomials "
              "that converge"),
        field("muon_eps", &C::muon_eps,
              "Muon: minimum of the norm that the running mean is divided by before the "
              "Newton-Schulz iterations")
            .positive(),
        field("muon_bf16", &C::muon_bf16,
              "Muon: compute the Newton-Schulz iterations in bf16; false: in the data type of the "
              "running mean"),
        field("muon_tp_mode", &C::muon_tp_mode,
              "Muon: how to update a matrix that is split over tensor-parallel ranks; exact: one "
              "of the ranks gathers and updates the whole matrix; blockwise: each rank treats its "
              "part as a matrix, so the trained model depends on tensor_model_parallel_size"),
        field("adaptive_muon_moment2_method", &C::adaptive_muon_moment2_method,
              "adaptive Muon: what the orthogonal factor is divided by; adamuon: the root mean "
              "square of each element; normuon: the root mean square of each row, or of each "
              "column if the matrix has more columns than rows")
            .on_resume(config::OnResume::kState),
        field("adaptive_muon_beta2", &C::adaptive_muon_beta2,
              "adaptive Muon: decay rate of the mean square of the orthogonal factor")
            .min(0)
            .less_than(1),
        field("adaptive_muon_eps", &C::adaptive_muon_eps,
              "adaptive Muon: value added to the root mean square (adamuon), or minimum of the "
              "mean square (normuon)")
            .positive(),
        field("adafactor_beta1", &C::adafactor_beta1,
              "Adafactor: decay rate of the running mean of the update; 0: no running mean")
            .min(0)
            .less_than(1)
            .on_resume(config::OnResume::kState),
        field("adafactor_decay_rate", &C::adafactor_decay_rate,
              "Adafactor: exponent c in the decay rate 1 - step^-c of the mean squares")
            .positive(),
        field("adafactor_eps", &C::adafactor_eps, "Adafactor: value added to each squared gradient")
            .positive(),
        field("adafactor_min_scale", &C::adafactor_min_scale,
              "Adafactor: minimum of the root mean square by which adafactor_scale_parameter "
              "multiplies the learning rate of a weight")
            .positive(),
        field("adafactor_clip_threshold", &C::adafactor_clip_threshold,
              "Adafactor: maximum root mean square of the update of a weight, before the learning "
              "rate is applied")
            .positive(),
        field("adafactor_scale_parameter", &C::adafactor_scale_parameter,
              "Adafactor: multiply the learning rate of a weight by its root mean square"),
        field("adafactor_relative_step", &C::adafactor_relative_step,
              "Adafactor: use at most 1/sqrt(step) as the learning rate"),
        field("exp_avg_dtype", &C::exp_avg_dtype,
              "data type in which the running mean of the gradient (momentum) is stored between "
              "steps; updates are computed in fp32; fp16 and fp8 (E4M3) are stored with one scale "
              "per parameter; means whose decay rate is too close to 1 for the type are rounded "
              "stochastically")
            .on_resume(config::OnResume::kTold),
        field("exp_avg_sq_dtype", &C::exp_avg_sq_dtype,
              "AdamW: data type in which the running mean of the squared gradient is stored "
              "between steps; updates are computed in fp32; fp8 stores the square root")
            .on_resume(config::OnResume::kTold),
        field("store_param_remainders", &C::store_param_remainders,
              "instead of a copy of the master weights, store the 16 bits of each fp32 master "
              "weight that its bf16 weight lacks; the run stays the same"),
        field("ema_decay", &C::ema_decay,
              "decay rate of a running mean of the weights, stored in fp32: mean = ema_decay mean "
              "+ (1 - ema_decay) weights after each update; 0: no running mean")
            .min(0)
            .less_than(1),
        field("param_groups", &C::param_groups,
              "factors for the learning rate and weight decay of parameters, by name with "
              "wildcards, such as [\"embedding.* lr_mult=0.5\", \"*norm* wd_mult=1\"]; the last "
              "entry that matches a parameter applies"),
        field(
            "clip_grad", &C::clip_grad,
            "maximum global gradient norm; larger gradients are scaled down to it; 0: no clipping")
            .non_negative(),
        field("grad_norm_skip_threshold", &C::grad_norm_skip_threshold,
              "skip the update of a step whose gradient norm is larger than this; 0: never")
            .non_negative(),
        field("qk_clip", &C::qk_clip,
              "after each update, scale down the query and key projections of attention heads "
              "whose largest logit in the step exceeded qk_clip_threshold"),
        field("qk_clip_threshold", &C::qk_clip_threshold,
              "qk_clip: largest allowed attention logit (scaled product of a query and a key) of a "
              "head")
            .positive(),
        field("qk_clip_alpha", &C::qk_clip_alpha,
              "qk_clip: queries are multiplied by (threshold / logit)^qk_clip_alpha, keys by "
              "(threshold / logit)^(1 - qk_clip_alpha)")
            .min(0)
            .max(1)};
  }
  void validate(config::Violations& violations, std::string_view path) const;

 private:
  void check_clip(config::Violations& violations, std::string_view path) const;
  void check_scaled(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::optim

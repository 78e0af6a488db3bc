#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/optim/matrices.h"
#include "pentatron/optim/matrix_grid.h"
#include "pentatron/optim/newton_schulz.h"
#include "pentatron/optim/remainder.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

double scale_of(MuonScale mode, int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  switch (mode) {
  case MuonScale::kMatchRmsAdamW:
    return 0.2 * std::sqrt(std::max(r, c));
  case MuonScale::kSpectral:
    return std::sqrt(std::max(r, c));
  case MuonScale::kUnitRmsNorm:
    return std::sqrt(r / c);
  case MuonScale::kOriginal:
    break;
  }
  return std::sqrt(std::max(1.0, r / c));
}

/// Calls `run` with a null pointer of the type of `x`: float, double or BFloat16.
template <class Run> void with_type(const at::Tensor& x, const Run& run) {
  if (x.scalar_type() == at::kDouble) return run(static_cast<double*>(nullptr));
  if (x.scalar_type() == at::kBFloat16) return run(static_cast<at::BFloat16*>(nullptr));
  run(static_cast<float*>(nullptr));
}

constexpr int64_t kGrain = 1 << 14;

/// mean = momentum mean + weight gradient, and what is to be made orthogonal, in one pass.
void add_gradient(const at::Tensor& mean, const at::Tensor& gradient, const at::Tensor& update,
                  double momentum, double weight, bool nesterov) {
  if (!mean.is_cpu()) {
    at::Tensor(mean).mul_(momentum).add_(gradient, weight);
    at::Tensor(update).copy_(nesterov ? mean.mul(momentum).add_(gradient, weight) : mean);
    return;
  }
  with_type(mean, [&]<class T>(T*) {
    with_type(update, [&]<class U>(U*) {
      T* const m = mean.mutable_data_ptr<T>();
      const T* const g = gradient.const_data_ptr<T>();
      U* const u = update.mutable_data_ptr<U>();
      const auto a = static_cast<T>(momentum), b = static_cast<T>(weight);
      at::parallel_for(0, mean.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          m[i] = a * m[i] + b * g[i];
          u[i] = static_cast<U>(nesterov ? a * m[i] + b * g[i] : m[i]);
        }
      });
    });
  });
}

/// weights = kept weights - lr update
void apply(const at::Tensor& weights, const at::Tensor& update, double kept, double lr) {
  if (!weights.is_cpu()) {
    at::Tensor(weights).mul_(kept).add_(update, -lr);
    return;
  }
  with_type(weights, [&]<class T>(T*) {
    with_type(update, [&]<class U>(U*) {
      T* const w = weights.mutable_data_ptr<T>();
      const U* const u = update.const_data_ptr<U>();
      const auto a = static_cast<T>(kept), b = static_cast<T>(lr);
      at::parallel_for(0, weights.numel(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) w[i] = a * w[i] - b * static_cast<T>(u[i]);
      });
    });
  });
}

/// The second moment of adaptive Muon: what an orthogonal factor O of a piece is divided by. The
/// grid is that of the matrices, whose sums are whole over tensor ranks.
class SecondMoment {
 public:
  explicit SecondMoment(const OptimizerConfig& config) : config_(config) {}

  std::vector<RuleState> state(at::ScalarType acc) const {
    if (!of_rows()) return {{"moment2_buffer", acc}};
    return {{"moment2_row", acc, {}, RuleState::Extent::kRows},
            {"moment2_col", acc, {}, RuleState::Extent::kColumns}};
  }

  /// Turns the orthogonal factors [S, R, C] of all pieces into updates, in place.
  void divide(const ShardState& part, const std::vector<at::Tensor>& factors) const {
    SumsOverRanks sums;
    std::vector<MatrixGrid> grids;
    std::vector<at::Tensor> rows, columns, before, after;
    for (size_t i = 0; i < factors.size(); ++i) {
      const nn::Piece& piece = part.shard.pieces[i];
      grids.emplace_back(*piece.param, config_.muon_split_qkv);
      if (!of_rows()) {
        at::Tensor moment = grids[i].view(part.state[1].narrow(0, piece.begin, piece.size));
        moment.lerp_(factors[i].square(), 1 - config_.adaptive_muon_beta2);
        at::Tensor(factors[i]).div_(moment.sqrt().add_(config_.adaptive_muon_eps));
        continue;
      }
      const at::Tensor squares = factors[i].square();
      rows.push_back(grids[i].sums_of_rows(squares, sums));
      columns.push_back(grids[i].sums_of_columns(squares, sums));
    }
    if (!of_rows()) return;
    sums.reduce(part.shard.tensor);
    for (size_t i = 0; i < factors.size(); ++i) {
      before.push_back(grids[i].totals_of(rows[i], columns[i]));
      divide_by_lines(grids[i], rows[i], columns[i], part.reduced[i], factors[i]);
      after.push_back(grids[i].totals(factors[i].square(), sums));
    }
    sums.reduce(part.shard.tensor);
    for (size_t i = 0; i < factors.size(); ++i) { // the norm stays
      const at::Tensor norm = after[i].sqrt_().clamp_min_(config_.adaptive_muon_eps);
      at::Tensor(factors[i]).mul_(grids[i].by_row(before[i].sqrt_().div_(norm)).unsqueeze(-1));
    }
  }

 private:
  bool of_rows() const { return config_.adaptive_muon_moment2_method == Moment2Method::kNorMuon; }

  /// Mean squares of the rows of a matrix, or of its columns if it has more columns than rows.
  void divide_by_lines(const MatrixGrid& grid, const at::Tensor& rows, const at::Tensor& columns,
                       const std::vector<at::Tensor>& moments, const at::Tensor& factor) const {
    const double beta2 = config_.adaptive_muon_beta2, least = config_.adaptive_muon_eps;
    for (int64_t p = 0; p < grid.parts(); ++p) {
      const RowInterval& own = grid.interval(p);
      at::Tensor part = factor.narrow(1, own.begin, own.size);
      if (grid.rows(p) >= grid.columns()) {
        at::Tensor moment = moments[0].narrow(1, own.begin, own.size);
        moment.lerp_(rows.narrow(1, own.begin, own.size) / static_cast<double>(grid.columns()),
                     1 - beta2);
        part.mul_(moment.clamp_min(least).rsqrt_().unsqueeze(-1));
      } else {
        at::Tensor moment = moments[1].select(1, p);
        moment.lerp_(columns.select(1, p) / static_cast<double>(grid.rows(p)), 1 - beta2);
        part.mul_(moment.clamp_min(least).rsqrt_().unsqueeze(1));
      }
    }
  }

  OptimizerConfig config_;
};

class Muon final : public Rule {
 public:
  Muon(const OptimizerConfig& config, bool adaptive)
      : config_(config), adaptive_(adaptive), moment_(config),
        polynomials_(quintics(config.muon_coefficient_type, config.muon_num_ns_steps)) {}

  bool needs_whole() const override { return true; }
  std::vector<RuleState> state(at::ScalarType acc) const override {
    const double momentum = config_.muon_momentum;
    std::vector<RuleState> all = {
        {"momentum_buffer", state_dtype(config_.exp_avg_dtype, acc), {momentum, 1 - momentum}}};
    if (adaptive_)
      for (RuleState& kept : moment_.state(acc)) all.push_back(std::move(kept));
    return all;
  }
  void step(const ShardState& part, const Hyperparameters& how) const override {
    const double momentum = config_.muon_momentum, weight = (1 - momentum) * how.grad_scale;
    std::vector<MatrixField> updates;
    const at::ScalarType type = config_.muon_bf16 ? at::kBFloat16 : part.master.scalar_type();
    for (const nn::Piece& piece : part.shard.pieces) {
      PT_DCHECK(piece.size == piece.param->numel());
      const auto own = [&](const at::Tensor& flat) {
        return flat.narrow(0, piece.begin, piece.size);
      };
      const at::Tensor update = at::empty({piece.size}, part.master.options().dtype(type));
      add_gradient(own(part.state[0]), own(part.shard.gradients), update, momentum, weight,
                   config_.muon_nesterov);
      updates.push_back({piece.param, update.view(piece.param->shape())});
    }
    update_matrices(updates,
                    {.split_qkv = config_.muon_split_qkv,
                     .blocks = config_.muon_tp_mode == MuonTensorMode::kBlockwise},
                    part.shard.tensor, [&](const at::Tensor& u) { orthogonalize(u); });
    if (adaptive_) updates = adapted(part, std::move(updates));
    for (size_t i = 0; i < updates.size(); ++i) {
      const nn::Piece& piece = part.shard.pieces[i];
      apply(part.master.narrow(0, piece.begin, piece.size), updates[i].value.flatten(),
            1 - how.lr * how.weight_decay, how.lr);
    }
    if (part.has_copy()) round_master(part.shard.values, part.master);
  }

 private:
  void orthogonalize(const at::Tensor& u) const { // [stack, rows, columns]
    const double scale = adaptive_ ? 1 : scale_for(u.size(-2), u.size(-1));
    at::Tensor out = u;
    at::mul_out(out, orthogonalized(u, polynomials_, config_.muon_eps),
                at::scalar_tensor(scale, at::kDouble));
  }
  double scale_for(int64_t rows, int64_t columns) const {
    return config_.muon_extra_scale_factor * scale_of(config_.muon_scale_mode, rows, columns);
  }

  /// Updates of orthogonal factors.
  std::vector<MatrixField> adapted(const ShardState& part, std::vector<MatrixField> factors) const {
    std::vector<at::Tensor> values;
    for (MatrixField& factor : factors) {
      const MatrixGrid grid(*factor.param, config_.muon_split_qkv);
      values.push_back(
          grid.view(factor.value.flatten()).to(part.master.scalar_type()).contiguous());
    }
    moment_.divide(part, values);
    const bool own_rows = planted("adaptive_muon_scaled_by_own_rows");
    for (size_t i = 0; i < factors.size(); ++i) {
      const MatrixGrid grid(*factors[i].param, config_.muon_split_qkv);
      for (int64_t p = 0; p < grid.parts(); ++p)
        values[i]
            .narrow(1, grid.interval(p).begin, grid.interval(p).size)
            .mul_(scale_for(own_rows ? grid.interval(p).size : grid.rows(p), grid.columns()));
      factors[i].value = values[i];
    }
    return factors;
  }

  OptimizerConfig config_;
  bool adaptive_;
  SecondMoment moment_;
  std::vector<Quintic> polynomials_;
};

} // namespace

std::unique_ptr<Rule> make_muon(const OptimizerConfig& config) {
  return std::make_unique<Muon>(config, false);
}

std::unique_ptr<Rule> make_adaptive_muon(const OptimizerConfig& config) {
  return std::make_unique<Muon>(config, true);
}

} // namespace pentatron::optim

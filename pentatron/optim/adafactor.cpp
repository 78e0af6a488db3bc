#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/optim/matrix_grid.h"
#include "pentatron/optim/remainder.h"
#include "pentatron/optim/rules.h"

namespace pentatron::optim {

namespace {

/// What a step works out for a piece.
struct Work {
  MatrixGrid grid;
  at::Tensor gradient;  // [S, R, C]
  at::Tensor rows;      // [S, R], then
  at::Tensor columns;   // [S, P, C]: sums of squared gradients
  at::Tensor old;       // [S, P]: sums of the mean squares of rows before the step
  at::Tensor parameter; // [S, P]: sums of squared weights
  at::Tensor update;    // [S, R, C]
  at::Tensor squares;   // [S, P]: sums of squared updates
};

/// A sum over the elements of each matrix [S, P] divided by their number.
at::Tensor mean_of(const at::Tensor& totals, const MatrixGrid& grid) {
  const at::Tensor counts = at::empty({grid.parts()}, totals.options());
  for (int64_t p = 0; p < grid.parts(); ++p)
    counts[p].fill_(static_cast<double>(grid.rows(p)) * static_cast<double>(grid.columns()));
  return totals / counts;
}

class Adafactor final : public Rule {
 public:
  Adafactor(const OptimizerConfig& config, bool factored) : config_(config), factored_(factored) {}

  bool needs_whole() const override { return true; }
  std::vector<RuleState> state(at::ScalarType acc) const override {
    std::vector<RuleState> all;
    if (config_.adafactor_beta1 > 0)
      all.push_back(
          {"exp_avg", state_dtype(config_.exp_avg_dtype, acc), {.decay = config_.adafactor_beta1}});
    if (factored_) {
      all.push_back({"exp_avg_sq_row", acc, {}, RuleState::Extent::kRows});
      all.push_back({"exp_avg_sq_col", acc, {}, RuleState::Extent::kColumns});
    } else {
      all.push_back({"exp_avg_sq", acc});
    }
    return all;
  }

  void step(const ShardState& part, const Hyperparameters& how) const override {
    const auto t = static_cast<double>(how.step);
    const double kept = 1 - std::pow(t, -config_.adafactor_decay_rate);
    const double rate =
        config_.adafactor_relative_step ? std::min(how.lr, 1 / std::sqrt(t)) : how.lr;
    SumsOverRanks sums;
    std::vector<Work> all;
    for (size_t i = 0; i < part.shard.pieces.size(); ++i)
      all.push_back(begin(part, i, how.grad_scale, sums));
    sums.reduce(part.shard.tensor);
    for (size_t i = 0; i < all.size(); ++i) set_update(all[i], part, i, kept, sums);
    sums.reduce(part.shard.tensor);
    for (size_t i = 0; i < all.size(); ++i)
      apply(all[i], part, i, rate, 1 - how.lr * how.weight_decay);
    if (part.has_copy()) round_master(part.shard.values, part.master);
  }

 private:
  static at::Tensor own(const at::Tensor& flat, const ShardState& part, size_t i) {
    const nn::Piece& piece = part.shard.pieces[i];
    return flat.narrow(0, piece.begin, piece.size);
  }

  Work begin(const ShardState& part, size_t i, double grad_scale, SumsOverRanks& sums) const {
    Work w{.grid = MatrixGrid(*part.shard.pieces[i].param),
           .gradient = {},
           .rows = {},
           .columns = {},
           .old = {},
           .parameter = {},
           .update = {},
           .squares = {}};
    w.gradient = w.grid.view(own(part.shard.gradients, part, i).mul(grad_scale));
    if (factored_) {
      const at::Tensor squares = w.gradient.square().add_(config_.adafactor_eps);
      w.rows = w.grid.sums_of_rows(squares, sums);
      w.columns = w.grid.sums_of_columns(squares, sums);
      w.old = w.grid.totals_of_rows(part.reduced[i][0], sums);
    }
    if (config_.adafactor_scale_parameter)
      w.parameter = w.grid.totals(w.grid.view(own(part.master, part, i)).square(), sums);
    return w;
  }

  /// The update before it is clipped and scaled.
  void set_update(Work& w, const ShardState& part, size_t i, double kept,
                  SumsOverRanks& sums) const {
    const MatrixGrid& grid = w.grid;
    if (factored_) {
      at::Tensor rows = part.reduced[i][0], columns = part.reduced[i][1];
      // The mean over all rows of what the rows' means become.
      const at::Tensor squares = grid.totals_of(w.rows, w.columns);
      const at::Tensor old = mean_of(w.old * static_cast<double>(grid.columns()), grid);
      const at::Tensor mean = kept * old + (1 - kept) * mean_of(squares, grid);
      rows.mul_(kept).add_(w.rows, (1 - kept) / static_cast<double>(grid.columns()));
      for (int64_t p = 0; p < grid.parts(); ++p)
        columns.select(1, p).mul_(kept).add_(w.columns.select(1, p),
                                             (1 - kept) / static_cast<double>(grid.rows(p)));
      w.update = w.gradient.mul_((rows / grid.by_row(mean)).rsqrt_().unsqueeze(-1));
      for (int64_t p = 0; p < grid.parts(); ++p)
        w.update.narrow(1, grid.interval(p).begin, grid.interval(p).size)
            .mul_(columns.narrow(1, p, 1).rsqrt());
    } else {
      const at::Tensor squares = grid.view(own(part.state.back(), part, i));
      at::Tensor(squares).mul_(kept).add_(w.gradient.square().add_(config_.adafactor_eps),
                                          1 - kept);
      w.update = w.gradient.mul_(squares.rsqrt());
    }
    w.squares = grid.totals(w.update.square(), sums);
  }

  void apply(Work& w, const ShardState& part, size_t i, double rate, double kept) const {
    const MatrixGrid& grid = w.grid;
    at::Tensor factor = mean_of(w.squares, grid)
                            .sqrt_()
                            .div_(config_.adafactor_clip_threshold)
                            .clamp_min_(1)
                            .reciprocal_()
                            .mul_(rate);
    if (config_.adafactor_scale_parameter)
      factor.mul_(mean_of(w.parameter, grid).sqrt_().clamp_min_(config_.adafactor_min_scale));
    at::Tensor update = w.update.mul_(grid.by_row(factor).unsqueeze(-1));
    if (config_.adafactor_beta1 > 0) {
      at::Tensor mean = grid.view(own(part.state.front(), part, i));
      mean.mul_(config_.adafactor_beta1).add_(update, 1 - config_.adafactor_beta1);
      update = mean;
    }
    at::Tensor(grid.view(own(part.master, part, i))).mul_(kept).sub_(update);
  }

  OptimizerConfig config_;
  bool factored_;
};

} // namespace

std::unique_ptr<Rule> make_adafactor(const OptimizerConfig& config) {
  return std::make_unique<Adafactor>(config, true);
}

std::unique_ptr<Rule> make_adafactor_of_vectors(const OptimizerConfig& config) {
  return std::make_unique<Adafactor>(config, false);
}

} // namespace pentatron::optim

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/optim/matrices.h"
#include "pentatron/optim/newton_schulz.h"
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

class Muon final : public Rule {
 public:
  explicit Muon(const OptimizerConfig& config)
      : config_(config),
        polynomials_(quintics(config.muon_coefficient_type, config.muon_num_ns_steps)) {}

  bool needs_whole() const override { return true; }
  std::vector<RuleState> state(at::ScalarType acc) const override {
    return {{"momentum_buffer", state_dtype(config_.exp_avg_dtype, acc)}};
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
    for (size_t i = 0; i < updates.size(); ++i) {
      const nn::Piece& piece = part.shard.pieces[i];
      apply(part.master.narrow(0, piece.begin, piece.size), updates[i].value.flatten(),
            1 - how.lr * how.weight_decay, how.lr);
    }
    if (part.has_copy()) at::Tensor(part.shard.values).copy_(part.master);
  }

 private:
  void orthogonalize(const at::Tensor& u) const { // [stack, rows, columns]
    const double scale =
        config_.muon_extra_scale_factor * scale_of(config_.muon_scale_mode, u.size(-2), u.size(-1));
    at::Tensor out = u;
    at::mul_out(out, orthogonalized(u, polynomials_, config_.muon_eps),
                at::scalar_tensor(scale, at::kDouble));
  }

  OptimizerConfig config_;
  std::vector<Quintic> polynomials_;
};

} // namespace

std::unique_ptr<Rule> make_muon(const OptimizerConfig& config) {
  return std::make_unique<Muon>(config);
}

} // namespace pentatron::optim

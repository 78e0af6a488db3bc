#include "pentatron/parallel/tensor/token_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/record.h"

namespace pentatron::parallel {

std::shared_ptr<const TokenAdapter> TokenAdapter::make(const nn::Scope& scope, nn::Param& weight) {
  weight.adaptable |= static_cast<uint8_t>(nn::AdaptedUse::kTokenWise);
  if (scope.adapters() == nullptr) return nullptr;
  if (!scope.adapters()->weights.contains(weight.name())) return nullptr;
  return std::shared_ptr<const TokenAdapter>(new TokenAdapter(scope, weight, *scope.adapters()));
}

std::vector<std::shared_ptr<const TokenAdapter>>
TokenAdapter::make_variants(const nn::Scope& scope, const nn::Param& weight) {
  std::vector<std::shared_ptr<const TokenAdapter>> variants;
  if (scope.variants() == nullptr) return variants;
  for (const nn::AdapterPlan& plan : *scope.variants()) {
    const std::string suffix = nn::variant_suffix(variants.size() + 1);
    variants.emplace_back(plan.weights.contains(weight.name())
                              ? new TokenAdapter(scope, weight, plan, suffix)
                              : nullptr);
  }
  return variants;
}

TokenAdapter::TokenAdapter(const nn::Scope& scope, const nn::Param& weight,
                           const nn::AdapterPlan& plan, const std::string& name_end) {
  const nn::AdaptedPart& part = plan.weights.find(weight.name())->second.front();
  const nn::ShardSpec& whole = weight.spec();
  scale_ = part.scale;
  const auto add = [&](const std::string& what, std::vector<int64_t> shape, nn::Init init) {
    nn::Param& param =
        scope.param(what + name_end,
                    {.name = {}, .shape = std::move(shape), .placements = whole.placements}, init);
    param.adapter = true;
    return &param;
  };
  // As LinearAdapter begins.
  const double bound = 1 / std::sqrt(static_cast<double>(whole.shape[1]));
  a_ = add("lora_A", {part.rank, whole.shape[1]}, nn::Init::uniform(bound));
  b_ = add("lora_B", {whole.shape[0], part.rank}, nn::Init::constant(0));
  b_->lr_scale = plan.b_lr_scale;
}

void TokenAdapter::add_rows(const at::Tensor& y, const at::Tensor& x) const {
  y.add_(nn::matmul_nt(nn::matmul_nt(x, a_->value()), b_->value()), scale_);
}

void TokenAdapter::add_variants(const std::vector<std::shared_ptr<const TokenAdapter>>& variants,
                                const at::Tensor& y, const at::Tensor& x, int64_t begin,
                                const nn::ForwardContext& ctx) {
  if (variants.empty() || ctx.variant_rows == nullptr) return;
  const int64_t end = begin + y.size(0);
  for (const nn::VariantRows& rows : *ctx.variant_rows) {
    const TokenAdapter* const adapter = variants[static_cast<size_t>(rows.variant - 1)].get();
    const int64_t first = std::max(begin, rows.begin), last = std::min(end, rows.begin + rows.size);
    if (adapter != nullptr && first < last)
      adapter->add_rows(y.narrow(0, first - begin, last - first),
                        x.narrow(0, first - begin, last - first));
  }
}

at::Tensor TokenAdapter::add_to(const at::Tensor& y, const at::Tensor& x,
                                const nn::ForwardContext& ctx) const {
  ctx.use(a_);
  ctx.use(b_);
  at::Tensor sum;
  {
    const nn::NoAutograd guard;
    sum = y.detach();
    add_rows(sum, x.detach());
  }
  nn::record("token_adapter", {y, x}, {sum}, {x},
             [a = a_, b = b_, scale = scale_, wants_dx = x.requires_grad()](auto&& grads,
                                                                            nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor x = saved.take(0);
               const at::Tensor du = grads[0].to(x.scalar_type()).mul(scale).contiguous();
               nn::add_matmul_tn(*b, du, nn::matmul_nt(x, a->value()));
               b->accumulated();
               const at::Tensor dz = nn::matmul_nn(du, b->value());
               nn::add_matmul_tn(*a, dz, x);
               a->accumulated();
               at::Tensor dx;
               if (wants_dx) dx = nn::matmul_nn(dz, a->value());
               return std::vector<at::Tensor>{grads[0], dx};
             });
  return sum;
}

} // namespace pentatron::parallel

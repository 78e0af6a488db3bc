#include "pentatron/parallel/tensor/vocab_adapter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/tensor/linear_adapter.h"

namespace pentatron::parallel {

using nn::Placement;

VocabAdapter::VocabAdapter(const nn::Scope& scope, const nn::Param& table, nn::AdaptedUse use,
                           const nn::AdapterPlan& plan, const std::string& name_end)
    : dropout_(plan.dropout), weight_name_(scope.prefix() + ".weight") {
  const bool embedding = use == nn::AdaptedUse::kEmbedding;
  const nn::AdaptedPart& part = plan.weights.find(weight_name_)->second.front();
  const nn::ShardSpec& whole = table.spec();
  scale_ = part.scale;
  const auto add = [&](const std::string& what, nn::ShardSpec spec, Placement tp, nn::Init init) {
    spec.placements = {{"tp", tp}};
    nn::Param& param = scope.param(what + name_end, std::move(spec), init);
    param.adapter = true;
    return &param;
  };
  const Placement addends = planted("vocabulary_adapter_gradient_not_summed")
                                ? Placement::replicate()
                                : Placement::partial();
  // An output layer's as LinearAdapter's; PEFT begins that of an embedding like an embedding.
  const double bound = 1 / std::sqrt(static_cast<double>(whole.shape[1]));
  a_ = add("lora_A", {.name = {}, .shape = {part.rank, whole.shape[1]}}, addends,
           embedding ? nn::Init::normal(1) : nn::Init::uniform(bound));
  b_ = add("lora_B", nn::spec_of_parts(whole, 0, 1, part.rank), Placement::shard(0),
           nn::Init::constant(0));
  if (embedding) {
    b_->padding_row = table.padding_row;
    return;
  }
  b_->lr_scale = plan.b_lr_scale;
  if (!plan.dora) return;
  magnitude_ = add("lora_magnitude", nn::spec_of_parts(whole, 0, 1), Placement::shard(0),
                   nn::Init::constant(1));
  magnitude_->lr_scale = plan.b_lr_scale;
}

void VocabAdapter::use(const nn::ForwardContext& ctx) const {
  for (nn::Param* const param : {a_, b_, magnitude_}) ctx.use(param);
}

void VocabAdapter::used() const {
  for (nn::Param* const param : {a_, b_, magnitude_})
    if (param != nullptr && param->trainable) param->accumulated();
}

/// Of W + s B A, in the accumulate type; 1 for rows of zeros, as those of the padding are.
at::Tensor VocabAdapter::row_norms(const nn::Param& table) const {
  const at::ScalarType acc = nn::acc_dtype(table.dtype());
  return norms_to_divide_by(squared_row_norms(table, 0, b_->value(), a_->value().to(acc), scale_));
}

at::Tensor VocabAdapter::add_product(const at::Tensor& logits, const at::Tensor& x,
                                     const at::Tensor& b) const {
  at::Tensor z = nn::matmul_nt(x, a_->value()).mul_(scale_);
  logits.addmm_(z.to(logits.scalar_type()), b.t());
  return z;
}

VocabAdapter::Pass::Pass(const VocabAdapter& adapter, const nn::Param& table,
                         const at::Tensor& rows, const nn::ForwardContext& ctx, bool with_gradient)
    : adapter_(adapter), keeps_logits_(with_gradient && adapter.magnitude_ != nullptr &&
                                       adapter.magnitude_->trainable) {
  const at::ScalarType acc = nn::acc_dtype(table.dtype());
  b_ = adapter.b_->value().to(acc);
  if (adapter.magnitude_ != nullptr) {
    norms_ = adapter.row_norms(table);
    factors_ = adapter.magnitude_->value().to(acc) / norms_;
  }
  if (!ctx.training || adapter.dropout_ == 0) return;
  p_ = adapter.dropout_;
  key_ = Stream(ctx.seed, "adapter_dropout/" + adapter.weight_name_).key();
  rows_ = nn::dropout_rows(nn::Rows::kAllTokens, *ctx.layout);
  if (rows.defined()) rows_ = rows_.index_select(0, rows);
}

at::Tensor VocabAdapter::Pass::dropped(const at::Tensor& x) const {
  return p_ == 0 ? x : nn::dropout_values(x, {.p = p_, .site = 0}, key_, rows_of_chunk_);
}

void VocabAdapter::Pass::add(const at::Tensor& logits, const at::Tensor& h, int64_t begin) {
  if (p_ > 0) rows_of_chunk_ = rows_.narrow(0, begin, h.size(0));
  z_ = adapter_.add_product(logits, dropped(h), b_);
  if (keeps_logits()) {
    if (!kept_.defined()) kept_ = at::empty_like(logits);
    before_ = kept_.narrow(0, 0, logits.size(0)).copy_(logits);
  }
  if (factors_.defined()) logits.mul_(factors_);
}

/// Over the logits of before, and so few rows at a time that copies in their type stay small.
void VocabAdapter::Pass::accumulate_magnitudes(const at::Tensor& gradient) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t rows = gradient.size(0), step = std::max<int64_t>(1, kElements / gradient.size(1));
  const at::Tensor sum = at::zeros_like(norms_);
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t n = std::min(step, rows - row);
    sum.add_(before_.narrow(0, row, n).mul_(gradient.narrow(0, row, n)).sum(0));
  }
  adapter_.magnitude_->main_grad().add_(sum.div_(norms_));
}

void VocabAdapter::Pass::accumulate(const at::Tensor& gradient, const at::Tensor& h) {
  if (keeps_logits()) accumulate_magnitudes(gradient);
  if (factors_.defined()) gradient.mul_(factors_.to(gradient.scalar_type()));
  if (adapter_.b_->trainable) nn::add_matmul_tn(*adapter_.b_, gradient, z_);
  dz_ = nn::matmul_nn(gradient, adapter_.b_->value()).mul_(adapter_.scale_);
  if (adapter_.a_->trainable) nn::add_matmul_tn(*adapter_.a_, dz_, dropped(h));
}

void VocabAdapter::Pass::add_to(const at::Tensor& dh) const {
  if (p_ == 0)
    dh.addmm_(dz_, adapter_.a_->value());
  else
    dh.add_(dropped(nn::matmul_nn(dz_, adapter_.a_->value())));
}

at::Tensor VocabAdapter::add_rows(const at::Tensor& y, const at::Tensor& ids, int64_t row_offset,
                                  const nn::ForwardContext& ctx) const {
  const at::Tensor rows = nn::embedding(ids, *b_, nullptr, row_offset, ctx);
  ctx.use(a_);
  at::Tensor sum, z;
  {
    const nn::NoAutograd guard;
    sum = y.detach();
    z = rows.detach() * scale_;
    sum.addmm_(z, a_->value());
  }
  nn::record("embedding_adapter", {y, rows}, {sum}, {z},
             [a = a_, scale = scale_](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               const at::Tensor dy = grads[0].contiguous();
               if (a->trainable) {
                 nn::add_matmul_tn(*a, saved.take(0), dy);
                 a->accumulated();
               }
               return std::vector<at::Tensor>{dy, nn::matmul_nt(dy, a->value()).mul_(scale)};
             });
  return sum;
}

void VocabAdapter::add_to_logits(const at::Tensor& logits, const at::Tensor& h) const {
  const at::ScalarType acc = logits.scalar_type();
  add_product(logits, h, b_->value().to(acc));
  if (magnitude_ != nullptr) logits.mul_(magnitude_->value().to(acc));
}

void VocabAdapter::add_to_rows(const at::Tensor& y, const at::Tensor& ids, int64_t row_offset,
                               const nn::ForwardContext& ctx) const {
  const nn::NoAutograd guard;
  y.addmm_(nn::embedding(ids, *b_, nullptr, row_offset, ctx), a_->value(), 1, scale_);
}

VocabAdapters::VocabAdapters(const nn::Scope& scope, nn::Param& table, nn::AdaptedUse use) {
  const std::string name = scope.prefix() + ".weight";
  table.adaptable |= static_cast<uint8_t>(use);
  const auto made = [&](const nn::AdapterPlan& plan, const std::string& name_end) {
    return plan.weights.contains(name)
               ? std::make_shared<const VocabAdapter>(scope, table, use, plan, name_end)
               : nullptr;
  };
  if (scope.adapters() != nullptr) adapter = made(*scope.adapters(), "");
  if (scope.variants() == nullptr) return;
  for (const nn::AdapterPlan& plan : *scope.variants())
    variants.push_back(made(plan, nn::variant_suffix(variants.size() + 1)));
}

void VocabAdapters::add_variants(const at::Tensor& logits, const at::Tensor& h,
                                 const at::Tensor& rows, const nn::ForwardContext& ctx) const {
  if (variants.empty() || ctx.variant_rows == nullptr) return;
  for (const nn::VariantRows& own : *ctx.variant_rows) {
    const VocabAdapter* const variant = variants[static_cast<size_t>(own.variant - 1)].get();
    if (variant == nullptr) continue;
    if (!rows.defined()) {
      variant->add_to_logits(logits.narrow(0, own.begin, own.size),
                             h.narrow(0, own.begin, own.size));
      continue;
    }
    const at::Tensor among =
        nn::rows_where((rows >= own.begin).logical_and_(rows < own.begin + own.size));
    if (among.numel() == 0) continue;
    const at::Tensor part = logits.index_select(0, among);
    variant->add_to_logits(part, h.index_select(0, among));
    logits.index_copy_(0, among, part);
  }
}

void VocabAdapters::add_variants_to_rows(const at::Tensor& y, const at::Tensor& ids,
                                         int64_t row_offset, const nn::ForwardContext& ctx) const {
  if (variants.empty() || ctx.variant_rows == nullptr) return;
  for (const nn::VariantRows& own : *ctx.variant_rows)
    if (const VocabAdapter* const variant = variants[static_cast<size_t>(own.variant - 1)].get())
      variant->add_to_rows(y.narrow(0, own.begin, own.size), ids.narrow(0, own.begin, own.size),
                           row_offset, ctx);
}

} // namespace pentatron::parallel

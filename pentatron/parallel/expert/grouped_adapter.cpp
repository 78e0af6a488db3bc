#include "pentatron/parallel/expert/grouped_adapter.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/record.h"

namespace pentatron::parallel {

using nn::Placement;

namespace {

/// Columns [begin, begin + size) of z, with a derivative.
at::Tensor columns_of(const at::Tensor& z, int64_t begin, int64_t size) {
  if (size == z.size(1)) return z;
  at::Tensor part;
  {
    const nn::NoAutograd guard;
    part = z.detach().narrow(1, begin, size).contiguous();
  }
  nn::record("columns", {z}, {part}, {}, [begin, size, all = z.size(1)](auto&& grads, nn::Saved&) {
    const nn::NoAutograd guard;
    const at::Tensor dz = at::zeros({grads[0].size(0), all}, grads[0].options());
    dz.narrow(1, begin, size).copy_(grads[0]);
    return std::vector<at::Tensor>{dz};
  });
  return part;
}

/// y with s u added to its columns [begin, ...); y is not used by anybody else.
at::Tensor add_scaled(const at::Tensor& y, const at::Tensor& u, int64_t begin, double scale) {
  at::Tensor sum;
  {
    const nn::NoAutograd guard;
    sum = y.detach();
    sum.narrow(1, begin, u.size(1)).add_(u.detach(), scale);
  }
  nn::record("add_scaled", {y, u}, {sum}, {},
             [begin, scale, size = u.size(1)](auto&& grads, nn::Saved&) {
               const nn::NoAutograd guard;
               return std::vector<at::Tensor>{grads[0], grads[0].narrow(1, begin, size).mul(scale)};
             });
  return sum;
}

} // namespace

std::shared_ptr<const GroupedAdapter> GroupedAdapter::make(const nn::Scope& scope,
                                                           nn::Param& weight) {
  weight.adaptable |= static_cast<uint8_t>(nn::AdaptedUse::kLinear);
  if (scope.adapters() == nullptr) return nullptr;
  if (!scope.adapters()->weights.contains(weight.name())) return nullptr;
  return std::shared_ptr<const GroupedAdapter>(
      new GroupedAdapter(scope, weight, *scope.adapters()));
}

std::vector<std::shared_ptr<const GroupedAdapter>>
GroupedAdapter::make_variants(const nn::Scope& scope, const nn::Param& weight) {
  std::vector<std::shared_ptr<const GroupedAdapter>> variants;
  if (scope.variants() == nullptr) return variants;
  bool any = false;
  for (const nn::AdapterPlan& plan : *scope.variants()) {
    const std::string suffix = nn::variant_suffix(variants.size() + 1);
    const bool has = plan.weights.contains(weight.name());
    variants.emplace_back(has ? new GroupedAdapter(scope, weight, plan, suffix) : nullptr);
    any = any || has;
  }
  if (!any) variants.clear();
  return variants;
}

void GroupedAdapter::add_variants(
    const std::vector<std::shared_ptr<const GroupedAdapter>>& variants, const at::Tensor& y,
    const at::Tensor& x, const std::vector<nn::RowRange>& ranges, const at::Tensor& variants_r,
    const nn::ForwardContext& ctx) {
  const int64_t* const variant_of = variants_r.const_data_ptr<int64_t>();
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i] == nullptr) continue;
    std::vector<int64_t> rows;
    std::vector<nn::RowRange> own; // of these rows side by side
    for (const nn::RowRange& range : ranges) {
      const int64_t begin = std::ssize(rows);
      for (int64_t row = range.begin; row < range.begin + range.rows; ++row)
        if (variant_of[row] == static_cast<int64_t>(i) + 1) rows.push_back(row);
      if (std::ssize(rows) > begin)
        own.push_back({.matrix = range.matrix, .begin = begin, .rows = std::ssize(rows) - begin});
    }
    if (rows.empty()) continue;
    const at::Tensor chosen = nn::to_device(at::tensor(rows, at::kLong), y.device());
    const at::Tensor sum =
        variants[i]->forward(x.index_select(0, chosen), own, y.index_select(0, chosen), ctx);
    y.index_copy_(0, chosen, sum);
  }
}

GroupedAdapter::GroupedAdapter(const nn::Scope& scope, const nn::Param& weight,
                               const nn::AdapterPlan& plan, const std::string& name_end) {
  const std::vector<nn::AdaptedPart>& parts = plan.weights.find(weight.name())->second;
  const nn::ShardSpec& whole = weight.spec();
  const bool by_rows = whole.placement("etp") == Placement::shard(1);
  const auto add = [&](const std::string& what, nn::ShardSpec spec, Placement etp, nn::Init init) {
    spec.placements = {{"ep", Placement::shard(0)}, {"etp", etp}};
    nn::Param& param = scope.param(what + name_end, std::move(spec), init);
    param.group = weight.group;
    param.adapter = true;
    return &param;
  };
  int64_t ranks = 0;
  for (const nn::AdaptedPart& part : parts) ranks += part.rank;
  const double bound = 1 / std::sqrt(static_cast<double>(whole.shape[2]));
  const std::string module = weight.name().substr(scope.prefix().size() + 1);
  const std::string prefix = module.substr(0, module.rfind('.') + 1); // "fc1."
  a_ = add(prefix + "lora_A",
           {.name = {}, .shape = {whole.shape[0], ranks, whole.shape[2]}, .stacked_dims = 1},
           by_rows ? Placement::partial() : Placement::shard(2), nn::Init::uniform(bound));
  int64_t first = 0;
  for (const nn::AdaptedPart& of : parts) {
    Part part{.first_row = nn::local_rows_before(whole, weight.where(), of.first),
              .first = first,
              .rank = of.rank,
              .scale = of.scale};
    first += of.rank;
    part.b = add(prefix + "lora_B" + (of.name.empty() ? "" : "." + of.name),
                 nn::spec_of_parts(whole, of.first, of.count, of.rank),
                 by_rows ? Placement::shard(1) : Placement::partial(), nn::Init::constant(0));
    part.b->lr_scale = plan.b_lr_scale;
    parts_.push_back(part);
  }
}

at::Tensor GroupedAdapter::forward(const at::Tensor& x, const std::vector<nn::RowRange>& ranges,
                                   const at::Tensor& y, const nn::ForwardContext& ctx) const {
  const at::Tensor z = nn::grouped_linear(x, ranges, *a_, nullptr, {}, ctx);
  at::Tensor sum = y;
  for (const Part& part : parts_) {
    const at::Tensor u =
        nn::grouped_linear(columns_of(z, part.first, part.rank), ranges, *part.b, nullptr, {}, ctx);
    sum = add_scaled(sum, u, part.first_row, part.scale);
  }
  return sum;
}

} // namespace pentatron::parallel

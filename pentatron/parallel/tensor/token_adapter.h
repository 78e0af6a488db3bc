/// Adapters of low rank (LoRA) beside a weight that every rank applies to its own tokens: routers,
/// gates of shared experts and projections to latents; see nn/adapter.h.
///
///   y += s (x A^T) B^T
///
/// Shapes: x [T, in], y [T, out], A [rank, in], B [out, rank]. A and B lie over the tp axis as the
/// weight does. No collectives.
/// Source: Hu et al. 2021 (arXiv:2106.09685) sec. 4.1.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"

namespace pentatron::parallel {

class TokenAdapter {
 public:
  /// Null if the scope's plan has no entry for the weight; `scope` is that of the weight's module.
  /// Marks the weight as one that takes adapters.
  static std::shared_ptr<const TokenAdapter> make(const nn::Scope& scope, nn::Param& weight);
  /// One for each of the scope's variants, in their order; null for one without an entry. Empty if
  /// there are no variants.
  static std::vector<std::shared_ptr<const TokenAdapter>> make_variants(const nn::Scope& scope,
                                                                        const nn::Param& weight);

  /// y with the adapter's part. y has the type of x or a wider one, and no other user.
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& x, const nn::ForwardContext& ctx) const;
  /// The same in place, without a derivative, for the rows of ctx.variant_rows. `x` and `y` are
  /// rows of the pass from `begin` on.
  static void add_variants(const std::vector<std::shared_ptr<const TokenAdapter>>& variants,
                           const at::Tensor& y, const at::Tensor& x, int64_t begin,
                           const nn::ForwardContext& ctx);

 private:
  TokenAdapter(const nn::Scope& scope, const nn::Param& weight, const nn::AdapterPlan& plan,
               const std::string& name_end = {});
  void add_rows(const at::Tensor& y, const at::Tensor& x) const;

  nn::Param *a_, *b_;
  double scale_ = 1;
};

/// The adapter and the variants of one weight.
struct TokenAdapters {
  TokenAdapters() = default;
  TokenAdapters(const nn::Scope& scope, nn::Param& weight)
      : adapter(TokenAdapter::make(scope, weight)),
        variants(TokenAdapter::make_variants(scope, weight)) {}
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& x, const nn::ForwardContext& ctx,
                    int64_t begin = 0) const {
    const at::Tensor sum = adapter == nullptr ? y : adapter->add_to(y, x, ctx);
    TokenAdapter::add_variants(variants, sum, x, begin, ctx);
    return sum;
  }

  std::shared_ptr<const TokenAdapter> adapter; ///< null: none
  std::vector<std::shared_ptr<const TokenAdapter>> variants;
};

} // namespace pentatron::parallel

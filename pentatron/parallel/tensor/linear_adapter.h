/// Low-rank adapters (LoRA, DoRA) for the frozen weight of a linear layer, split over the tp axis
/// or whole on every rank. A layer with an adapter delegates its forward pass to it; see
/// nn/adapter.h.
///
///   LoRA  y = x W^T + b, and for each adapted part P: y[:, P] += s (dropout(x) A_P^T) B_P^T
///   DoRA  the same before the bias, then y[:, P] *= m / ||W_P + s B_P A_P|| (norm of each row,
///         detached from the gradient)
///
/// Parameters: lora_A [sum of ranks, in], one for all parts; lora_B.<part> [rows of the part,
/// rank]; with DoRA lora_magnitude.<part> [rows of the part].
/// Placement over tp: if the weight is split by rows, A is Partial, and B and the magnitudes are
/// split like the weight. If the weight is split by columns, A is split like the weight, B is
/// Partial, because each rank multiplies it with the product of its own columns, and the magnitudes
/// are token-wise. If the weight is whole, all lie as it does.
/// Collectives beyond those of the layer: under sequence parallel, of a weight split by rows, the
/// all-gather of x A^T and the reduce-scatter of its gradient [T, ranks]; with DoRA, of a weight
/// split by columns, an all-reduce of the squared norms [out].
/// Source: Hu et al. 2021 (arXiv:2106.09685) sec. 4.1; Liu et al. 2024 (arXiv:2402.09353) sec. 4.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"
#include "pentatron/parallel/tensor/tensor_parallel.h"

namespace pentatron::nn {
class Saved;
}

namespace pentatron::parallel {

/// Squared norms of rows [first, first + n) of weight + scale b a, in the type of a; b has n rows.
at::Tensor squared_row_norms(const nn::Param& weight, int64_t first, const at::Tensor& b,
                             const at::Tensor& a, double scale);
/// The norms by which DoRA divides; 1 for rows of zeros, whose outputs are 0.
at::Tensor norms_to_divide_by(const at::Tensor& squares);

class LinearAdapter {
 public:
  /// What the weight is split by. A whole one is applied to the rank's own tokens, or to a row for
  /// each sample, without collectives.
  enum class Split : uint8_t { kRows, kColumns, kWholeOfTokens, kWholeOfSamples };

  /// Null if the scope's plan has no entry for the weight. Marks the weight as one that takes
  /// adapters.
  static std::shared_ptr<const LinearAdapter> make(const nn::Scope& scope, nn::Param& weight,
                                                   Split split, const TensorParallel& tp);

  /// One for each of the scope's variants, in their order; null for one without an entry. Empty
  /// without variants.
  static std::vector<std::shared_ptr<const LinearAdapter>>
  make_variants(const nn::Scope& scope, nn::Param& weight, Split split, const TensorParallel& tp);
  /// y += s (x A^T) B^T for the rows of ctx.variant_rows, each with its variant; `x` and `y` are
  /// rows of the pass from `begin` on. Beside a weight split by columns, y is the rank's addend.
  /// `bias`: what y has already (null: none), which DoRA does not scale. The magnitudes of a
  /// variant are m / ||W_P + s B_P A_P||, see checkpoint::divide_by_row_norms().
  static void add_variants(const std::vector<std::shared_ptr<const LinearAdapter>>& variants,
                           const at::Tensor& y, const at::Tensor& x, const nn::Param* bias,
                           int64_t begin, const nn::ForwardContext& ctx);
  /// The rank's weight with this variant merged into it, for products of another form.
  at::Tensor merged(const nn::Param& weight) const;
  /// The same with an adapter that trains, whose magnitudes are m.
  at::Tensor trained(const nn::Param& weight) const;

  /// The whole layer; `weight` and `bias` (or null) are frozen.
  at::Tensor forward(const at::Tensor& x, const nn::Param& weight, const nn::Param* bias,
                     const nn::ForwardContext& ctx) const;

 private:
  struct Part {
    int64_t first_row = 0, rows = 0; ///< of the rank's y
    int64_t first = 0, rank = 0;     ///< of A's rows
    double scale = 1;
    nn::Param *b = nullptr, *magnitude = nullptr;
  };
  struct Dropout {
    double p = 0;
    std::array<uint32_t, 2> key = {};
    int64_t feature_offset = 0;
    at::Tensor apply(const at::Tensor& x, const at::Tensor& rows) const;
  };

  /// `name_end`: what the names of its parameters end with.
  LinearAdapter(const nn::Scope& scope, const nn::Param& weight, const nn::AdapterPlan& plan,
                Split split, TensorParallel tp, const std::string& name_end = {});
  Dropout dropout_of(const nn::ForwardContext& ctx) const;
  at::Tensor down(const at::Tensor& x, const Dropout& dropout, const at::Tensor& rows) const;
  void up(const at::Tensor& y, const at::Tensor& z) const;
  void scale_rows(const at::Tensor& y, const nn::Param* bias) const;
  at::Tensor back_up(const at::Tensor& dy, const at::Tensor& z) const;
  void back_down(const at::Tensor& dz, const at::Tensor& x, const at::Tensor& dx,
                 const Dropout& dropout, const at::Tensor& rows) const;
  at::Tensor row_norms(const Part& part, const nn::Param& weight) const;
  at::Tensor scale_back(const at::Tensor& dy, nn::Saved& saved, size_t first) const;
  at::Tensor rows_backward(const at::Tensor& dy, nn::Saved& saved, const nn::Param& weight,
                           const Dropout& dropout, bool wants_dx) const;
  at::Tensor columns_backward(const at::Tensor& dy, nn::Saved& saved, const nn::Param& weight,
                              const Dropout& dropout) const;

  TensorParallel tp_;
  Split split_;
  std::string weight_name_;
  double dropout_ = 0;
  bool dora_ = false;
  nn::Param* a_ = nullptr;
  std::vector<Part> parts_;
};

} // namespace pentatron::parallel

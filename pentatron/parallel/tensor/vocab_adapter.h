/// Low-rank adapters (LoRA, DoRA) beside a frozen table [V, H] that is split over the vocabulary;
/// see nn/adapter.h.
///
///   output layer  logits += s (dropout(h) A^T) B^T, before the bias; DoRA: then the logits of each
///                 token v are multiplied by m[v] / ||W + s B A||[v] (detached), before the bias
///   embedding     y += s B[ids] A, without dropout and DoRA
///
/// Parameters: lora_A [rank, H], lora_B [V, rank], with DoRA lora_magnitude [V].
/// Placement over tp: B and the magnitudes are split like the table; A is Partial. No collectives.
/// Source: Hu et al. 2021 (arXiv:2106.09685) sec. 4.1; Liu et al. 2024 (arXiv:2402.09353) sec. 4.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/nn/context.h"
#include "pentatron/nn/module.h"

namespace pentatron::parallel {

class VocabAdapter {
 public:
  VocabAdapter(const nn::Scope& scope, const nn::Param& table, nn::AdaptedUse use,
               const nn::AdapterPlan& plan, const std::string& name_end = {});

  /// Announces a use of all parameters, and pays one back.
  void use(const nn::ForwardContext& ctx) const;
  void used() const;

  /// A pass of the output layer over chunks of tokens: add() for each, and accumulate() behind it
  /// where a gradient is wanted.
  class Pass {
   public:
    /// `rows`: of the tokens, if some are left out; else undefined. `with_gradient`: whether
    /// accumulate() follows.
    Pass(const VocabAdapter& adapter, const nn::Param& table, const at::Tensor& rows,
         const nn::ForwardContext& ctx, bool with_gradient);
    /// `logits` [n, V], the product alone in the accumulate type, of tokens [begin, begin + n) with
    /// hidden states `h`.
    void add(const at::Tensor& logits, const at::Tensor& h, int64_t begin);
    /// Adds the gradients of the parameters. `gradient`: that of the logits; becomes that of the
    /// product.
    void accumulate(const at::Tensor& gradient, const at::Tensor& h);
    /// Adds what h has from the adapter to its gradient. Behind accumulate().
    void add_to(const at::Tensor& dh) const;
    /// Whether a chunk holds its logits twice. The first one has the most tokens.
    bool keeps_logits() const { return keeps_logits_; }

   private:
    at::Tensor dropped(const at::Tensor& x) const;
    void accumulate_magnitudes(const at::Tensor& gradient);

    const VocabAdapter& adapter_;
    bool keeps_logits_ = false;
    double p_ = 0;
    std::array<uint32_t, 2> key_ = {};
    at::Tensor rows_;                ///< addresses of dropout
    at::Tensor b_, factors_, norms_; ///< in the accumulate type
    at::Tensor kept_;                ///< logits before they are scaled, of any chunk
    // Of the chunk:
    at::Tensor z_, before_, dz_, rows_of_chunk_;
  };

  /// y [T, H] of tokens `ids` with what the rows of this rank add; y has no other user.
  at::Tensor add_rows(const at::Tensor& y, const at::Tensor& ids, int64_t row_offset,
                      const nn::ForwardContext& ctx) const;

  /// Of a variant, without a derivative and in place: whose magnitudes are m / ||W + s B A||.
  void add_to_logits(const at::Tensor& logits, const at::Tensor& h) const;
  void add_to_rows(const at::Tensor& y, const at::Tensor& ids, int64_t row_offset,
                   const nn::ForwardContext& ctx) const;

 private:
  at::Tensor row_norms(const nn::Param& table) const;
  /// Adds the adapter's part to logits, x being the input of A and b the values of B in the type of
  /// logits; returns s x A^T.
  at::Tensor add_product(const at::Tensor& logits, const at::Tensor& x, const at::Tensor& b) const;

  nn::Param *a_ = nullptr, *b_ = nullptr, *magnitude_ = nullptr;
  double scale_ = 1, dropout_ = 0;
  std::string weight_name_;
};

/// The adapter and the variants of one use of a table.
struct VocabAdapters {
  VocabAdapters() = default;
  /// `scope`: of the layer's weight, which may be another name of the table. Marks the table as one
  /// that takes adapters.
  VocabAdapters(const nn::Scope& scope, nn::Param& table, nn::AdaptedUse use);

  /// Adds the variants of ctx.variant_rows to the logits of tokens `rows` (undefined: all).
  void add_variants(const at::Tensor& logits, const at::Tensor& h, const at::Tensor& rows,
                    const nn::ForwardContext& ctx) const;
  /// The same for the rows y of an embedding.
  void add_variants_to_rows(const at::Tensor& y, const at::Tensor& ids, int64_t row_offset,
                            const nn::ForwardContext& ctx) const;

  std::shared_ptr<const VocabAdapter> adapter;               ///< null: none
  std::vector<std::shared_ptr<const VocabAdapter>> variants; ///< null: without an entry
};

} // namespace pentatron::parallel

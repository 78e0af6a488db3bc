/// Rows of the word table, times a factor, plus learned positions, with dropout.
#pragma once

#include "pentatron/models/model_config.h"
#include "pentatron/parallel/tensor/vocab.h"

namespace pentatron::models {

class TokenEmbedding {
 public:
  /// `positions` may be null.
  TokenEmbedding(nn::Param& words, nn::Param* positions, const ModelConfig& config,
                 const parallel::TensorParallel& tp, const parallel::VocabAdapters& adapters = {});
  /// Shapes: ids [T] int64, places [T] int64, undefined: those of the layout -> [T, hidden], under
  /// sequence parallel [T / t, hidden]. `site`: of dropout.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& places, uint32_t site,
                     const nn::ForwardContext& ctx) const;

 private:
  parallel::VocabParallelEmbedding words_, with_positions_;
  nn::Param* positions_;
  bool scales_;           ///< by multiplier_: the words alone
  double multiplier_ = 1; ///< as a number of the model's type
  double dropout_;
};

} // namespace pentatron::models

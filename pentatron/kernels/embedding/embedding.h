/// Rows of a table chosen by token number, and the gradient of the table. The table may be one
/// rank's rows of a larger one.
///
/// Shapes: tokens t, width h, local rows v. ids [t], values [t, h], table [v, h], all contiguous.
/// An id outside [row_offset, row_offset + rows) belongs to another rank: it gives zeros, and adds
/// to no gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

/// out_t = scale * table[ids_t - row_offset] + position_table[positions_t]
struct EmbeddingArgs {
  DType dtype = DType::kFloat32;     ///< of the tables
  DType out_dtype = DType::kFloat32; ///< kFloat64 exactly if dtype is
  int64_t tokens = 0;
  int64_t width = 0;
  const void* table = nullptr;
  int64_t rows = 0;
  int64_t row_offset = 0;
  const int64_t* ids = nullptr;
  const void* position_table = nullptr; ///< [num_positions, h]; null: no positions added
  int64_t num_positions = 0;
  const int64_t* positions = nullptr; ///< [t]; one outside [0, num_positions) adds zeros
  double scale = 1;
  void* out = nullptr;
};
void embedding(const EmbeddingArgs& args, const Context& context = {});
std::span<const Entry<EmbeddingArgs>> embedding_entries();

/// main_grad[ids_t - row_offset] += scale * dy_t, tokens in order, for every number of threads the
/// same bits (CPU; on CUDA too).
struct EmbeddingGradientArgs {
  DType dtype = DType::kFloat32;      ///< of dy
  DType grad_dtype = DType::kFloat32; ///< acc_dtype(dtype)
  int64_t tokens = 0;
  int64_t width = 0;
  const void* dy = nullptr;
  const int64_t* ids = nullptr;
  int64_t rows = 0;
  int64_t row_offset = 0;
  double scale = 1;
  void* main_grad = nullptr; ///< in, out
};
void embedding_gradient(const EmbeddingGradientArgs& args, const Context& context = {});
/// Scratch for sorting the tokens on CUDA; the CPU needs none.
size_t workspace_bytes(const EmbeddingGradientArgs& args);
std::span<const Entry<EmbeddingGradientArgs>> embedding_gradient_entries();

/// The index of the first id outside [0, vocab), or -1. `allow_negative` lets ids < 0 pass (ignored
/// targets). Host memory.
int64_t first_bad_id(const int64_t* ids, int64_t n, int64_t vocab, bool allow_negative = false);

} // namespace pentatron::kernels

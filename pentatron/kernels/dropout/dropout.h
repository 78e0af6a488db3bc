/// Dropout whose mask is a function of the global element, so that every layout and every
/// recomputation draws the same one.
///
/// Shapes: x, residual, y [rows, cols], each with a row stride; y may be x or residual.
///   y = keep ? x / (1 - p) : 0, plus residual if given. Backward of the x branch is the same call
///   on dy without a residual.
/// Mask: element (row, feature F = feature_offset + column) is kept if
///   philox({row_id low, row_id high, (F / 64) * 16 + F % 16, site}, key)[F % 64 / 16] >= p * 2^32
///   so that 16 counters side by side give 64 neighbouring features without a transposition.
///   row_id is row_ids[row], or row_begin + row * row_step: a function of (sample, position in the
///   sample) that no layout changes.
/// p = 0 keeps everything, p = 1 nothing.
/// Source: Srivastava et al. 2014 (JMLR 15); Salmon et al. 2011 (Philox).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct Dropout {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr; ///< null: none
  void* y = nullptr;
  int64_t x_stride = 0; ///< elements from row to row; 0: packed
  int64_t residual_stride = 0;
  int64_t y_stride = 0;
  double p = 0.0;                   ///< probability of being dropped
  std::array<uint32_t, 2> key = {}; ///< Stream(seed, "dropout").key()
  uint32_t site = 0;                ///< which dropout of which layer
  const uint64_t* row_ids = nullptr;
  uint64_t row_begin = 0;
  uint64_t row_step = 1;
  int64_t feature_offset = 0; ///< global index of column 0
};

/// Throws ShapeError if sizes are negative, ConfigError if p is outside [0, 1].
void dropout(const Dropout& args, const Context& context = {});

/// p * 2^32: a word below it drops its element. For p = 1 it is 2^32: every word does.
uint64_t dropout_threshold(double p);

/// Whether one element is kept: the definition above.
bool dropout_keeps(const Dropout& args, int64_t row, int64_t col);

std::span<const Entry<Dropout>> dropout_entries();

} // namespace pentatron::kernels

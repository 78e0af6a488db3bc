/// Sums of chosen rows: what takes tokens to their experts and results back.
///
/// Shapes: x [any, cols], places [rows, k] int64, y [rows, cols], packed.
///   y[r] = x[places[r, 0]] + ... + x[places[r, k - 1]], in this order, summed in the accumulate
///   type and rounded once. Places below 0 are ignored; a row without places is zero. With k = 1
///   rows
///   are copied.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct SumRows {
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t k = 1;
  int64_t cols = 0;
  const void* x = nullptr;
  const int64_t* places = nullptr; ///< each below the number of rows of x (not checked)
  void* y = nullptr;
};

/// Throws ShapeError if a size is negative.
void sum_rows(const SumRows& args, const Context& context = {});

std::span<const Entry<SumRows>> sum_rows_entries();

} // namespace pentatron::kernels

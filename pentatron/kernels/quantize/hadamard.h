/// Random Hadamard transform along the rows of a matrix: each 16 neighbouring rows of a column are
/// multiplied by diag(signs) H / 4, with H the Hadamard matrix of 16 and fixed signs.
///
/// The matrix is orthogonal: a product that sums over rows, dy^T x, is that of the transformed
/// operands, and what an outlier adds to its block is shared by 16 numbers before they are
/// quantised. Shapes: x [rows, cols], out [hadamard_rows(rows), cols]; missing rows are zero.
/// Sums in the accumulate type. Source: NVIDIA 2025 (arXiv:2509.25149) sec. 4.2; the signs are
/// those of TransformerEngine.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

inline constexpr int64_t kHadamardSize = 16;
inline constexpr std::array<int, 16> kHadamardSigns = {1,  1,  1,  -1, 1,  -1, -1, -1,
                                                       -1, -1, -1, 1,  -1, 1,  -1, -1};

/// The next multiple of 16.
constexpr int64_t hadamard_rows(int64_t rows) {
  return (rows + kHadamardSize - 1) / kHadamardSize * kHadamardSize;
}

struct Hadamard {
  DType dtype = DType::kFloat32; ///< of x; `out` is of the accumulate type
  int64_t rows = 0;
  int64_t cols = 0;
  const void* x = nullptr;
  void* out = nullptr;
  bool inverse = false;
};
void hadamard(const Hadamard& args, const Context& context = {});

std::span<const Entry<Hadamard>> hadamard_entries();

} // namespace pentatron::kernels

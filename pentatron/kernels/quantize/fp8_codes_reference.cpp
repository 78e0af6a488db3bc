#include <algorithm>
#include <vector>

#include "pentatron/kernels/quantize/fp8_codes_entries.h"
#include "pentatron/kernels/quantize/quantize.h"

namespace pentatron::kernels {

void Fp8CodesReference::run(const RaiseAmax& a, const Context&) {
  *a.amax = std::max(*a.amax, largest_size(a.dtype, a.n, a.x));
}

void Fp8CodesReference::run(const Fp8Codes& a, const Context&) {
  std::vector<uint8_t> codes(static_cast<size_t>(a.rows * a.cols));
  quantize({.recipe = a.recipe,
            .dtype = a.dtype,
            .rows = a.rows,
            .cols = a.cols,
            .x = a.x,
            .amax = a.amax,
            .codes = codes.data(),
            .tensor_scale = a.scale});
  const int64_t rows = a.transposed ? a.cols : a.rows, cols = a.transposed ? a.rows : a.cols;
#pragma omp parallel for schedule(static) if (rows * cols > 1 << 14)
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* const out = a.codes + r * a.stride;
    for (int64_t c = 0; c < cols; ++c)
      out[c] = codes[static_cast<size_t>(a.transposed ? c * a.cols + r : r * a.cols + c)];
    std::fill(out + cols, out + a.stride, uint8_t{0});
  }
}

} // namespace pentatron::kernels

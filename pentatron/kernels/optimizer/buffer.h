/// Passes over one flat buffer of any dtype: norm, search for NaN and infinity, scale, zero,
/// conversion.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

/// result = sum of x_i^2 in double. The order of additions is fixed: blocks of kSumBlock elements,
/// in each 32 lanes (lane i mod 32), lanes added as a binary tree, then blocks in order; so every
/// CPU entry and thread count gives the same bits.
struct SumOfSquaresArgs {
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  const void* x = nullptr;
  double* result = nullptr; ///< out (device memory on CUDA)
};
constexpr int64_t kSumBlock = 32768;
void sum_of_squares(const SumOfSquaresArgs& args, const Context& context = {});
/// Context::workspace that sum_of_squares needs on CUDA; the CPU needs none.
size_t workspace_bytes(const SumOfSquaresArgs& args);
std::span<const Entry<SumOfSquaresArgs>> sum_of_squares_entries();

/// How many elements are NaN or infinite, and the index of the first one (-1: none).
struct NonfiniteArgs {
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  const void* x = nullptr;
  int64_t* count = nullptr;       ///< out (device memory on CUDA)
  int64_t* first_index = nullptr; ///< out (device memory on CUDA)
};
void find_nonfinite(const NonfiniteArgs& args, const Context& context = {});
std::span<const Entry<NonfiniteArgs>> find_nonfinite_entries();

/// x_i *= factor; the factor is rounded to the accumulate type first.
struct ScaleArgs {
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  void* x = nullptr;
  double factor = 1;
};
void scale(const ScaleArgs& args, const Context& context = {});
std::span<const Entry<ScaleArgs>> scale_entries();

/// out_i = x_i in another dtype, rounded to nearest even; a NaN stays a NaN. The buffers do not
/// overlap.
struct CastArgs {
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kBFloat16;
  int64_t n = 0;
  const void* x = nullptr;
  void* out = nullptr;
};
void cast(const CastArgs& args, const Context& context = {});
std::span<const Entry<CastArgs>> cast_entries();

/// Writes zeros over `bytes` bytes.
struct ZeroArgs {
  int64_t bytes = 0;
  void* x = nullptr;
};
void zero(const ZeroArgs& args, const Context& context = {});
std::span<const Entry<ZeroArgs>> zero_entries();

} // namespace pentatron::kernels

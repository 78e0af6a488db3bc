/// C = op(A) op(B) [+ C] [+ bias], row-major, with sums in fp32 (fp64 for fp64).
///
/// Shapes, op(X) = X or X^T:
///   op(A) [m, k], op(B) [k, n], C [m, n], bias [n] added to every row.
///   a holds [m, k] with rows lda apart, or [k, m] if transpose_a; b holds [k, n], or [n, k] if
///   transpose_b.
/// Types: fp32 -> fp32; bf16 or fp16 -> fp32 or the same (one rounding at the end); the reference
/// also takes fp64 -> fp64.
///
/// Order of sums: in one entry, k is cut into blocks that depend on k and the type alone, each
/// block is summed in order of k, and the blocks are added in order. So an element of C depends on
/// its row of op(A), its column of op(B) and its own old value only: not on the number of threads,
/// nor on m and n. Which entry runs may depend on the class of n and k (selection/op_class.h),
/// never on m. Blocks and the order within 32 k differ between entries. The entries "mkl" and
/// "mkl_bf16" do not keep this order: with them an element may depend on m, n, strides and the
/// number of threads. Entries with bf16 instructions treat subnormal inputs and results as zero.
///
/// Threads: num_threads() through OpenMP; called from inside a parallel region it runs on the
/// calling thread.
#pragma once

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct GemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  DType in_dtype = DType::kFloat32;  ///< of A and B
  DType out_dtype = DType::kFloat32; ///< of C
  const void* a = nullptr;
  int64_t lda = 0; ///< elements between rows as stored; the same for ldb, ldc
  const void* b = nullptr;
  int64_t ldb = 0;
  void* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false; ///< add to C; otherwise the old content of C is never read
  /// C is square, and what is above its diagonal is not asked for: undefined afterwards. Entries
  /// may compute it or not.
  bool lower = false;
  const void* bias = nullptr;         ///< [n], or none
  DType bias_dtype = DType::kFloat32; ///< any but kFloat64 (kFloat64 under fp64)
  /// `batch` independent products; the matrices of item i begin i strides (in elements) after the
  /// first. A stride of 0 shares A or B.
  int64_t batch = 1;
  int64_t stride_a = 0;
  int64_t stride_b = 0;
  int64_t stride_c = 0;
};

/// The implementations in the order that counts without a selection: "amx_bf16", "avx512_bf16",
/// "avx512", "widened" (bf16 and fp16 converted to fp32 for
/// AVX-512), "avx2", "mkl_bf16" and "mkl" (Intel
/// MKL inside libtorch_cpu, on processors with AVX2), "reference". Each refuses what it cannot run.
std::span<const Entry<GemmArgs>> gemm_entries();

/// True if an implementation faster than the reference takes these arguments; callers use LibTorch
/// otherwise.
bool gemm_supported(const GemmArgs& args, const Context& context = {});

/// Name of the entry that gemm() would run, or "none".
std::string_view gemm_entry(const GemmArgs& args, const Context& context = {});

/// Runs that entry. Throws ShapeError for arguments that contradict each
/// other, and Error with the reasons if every entry refuses.
void gemm(const GemmArgs& args, const Context& context = {});

/// The scalar definition of correct, in the same order of sums for k <= 1; any type.
void gemm_reference(const GemmArgs& args, const Context& context);

/// Packed copies of blocks of A and B live in buffers that are kept between calls. Returns how much
/// is held, in bytes.
int64_t gemm_buffer_bytes();
/// Frees the buffers that no running call uses.
void gemm_release_buffers();

} // namespace pentatron::kernels

#include "pentatron/kernels/gemm/gemm_simd.h"

#if defined(PENTATRON_MKL) && defined(__x86_64__)

#include <vector>

#include <omp.h>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/gemm/pack_buffer.h"

#define PT_SIMD_BODY "pentatron/kernels/gemm/gemm_mkl_body.h"
#include "pentatron/kernels/common/foreach_isa.h"

// MKL's Fortran interface with 64-bit integers, as libtorch_cpu exports it.
extern "C" {
void sgemm_64_(const char* transpose_a, const char* transpose_b, const int64_t* m, const int64_t* n,
               const int64_t* k, const float* alpha, const float* a, const int64_t* lda,
               const float* b, const int64_t* ldb, const float* beta, float* c, const int64_t* ldc);
void gemm_bf16bf16f32_64_(const char* transpose_a, const char* transpose_b, const int64_t* m,
                          const int64_t* n, const int64_t* k, const float* alpha, const uint16_t* a,
                          const int64_t* lda, const uint16_t* b, const int64_t* ldb,
                          const float* beta, float* c, const int64_t* ldc);
int MKL_Set_Num_Threads_Local(int threads);
}

namespace pentatron::kernels::gemm_detail {
namespace {

/// MKL's threads of the calling thread are those of the contract while it lives.
class MklThreads {
 public:
  MklThreads() : before_(MKL_Set_Num_Threads_Local(omp_in_parallel() != 0 ? 1 : num_threads())) {}
  ~MklThreads() { MKL_Set_Num_Threads_Local(before_); }
  MklThreads(const MklThreads&) = delete;
  MklThreads& operator=(const MklThreads&) = delete;

 private:
  int before_;
};

/// c = op(a) op(b), or c += ... if `add`, for `rows` rows from `first` of op(A) of an item; rows of
/// c are ldc apart. MKL stores by columns, so it is asked for C^T = op(B)^T op(A)^T.
void multiply(const GemmArgs& g, int64_t item, int64_t first, int64_t rows, bool add, float* c,
              int64_t ldc) {
  const char transpose_a = g.transpose_a ? 'T' : 'N', transpose_b = g.transpose_b ? 'T' : 'N';
  const float one = 1, beta = add ? 1 : 0;
  const int64_t a = item * g.stride_a + first * (g.transpose_a ? 1 : g.lda);
  const int64_t b = item * g.stride_b;
  const int64_t lda = std::max<int64_t>(1, g.lda), ldb = std::max<int64_t>(1, g.ldb);
  if (g.in_dtype == DType::kFloat32) {
    sgemm_64_(&transpose_b, &transpose_a, &g.n, &rows, &g.k, &one,
              static_cast<const float*>(g.b) + b, &ldb, static_cast<const float*>(g.a) + a, &lda,
              &beta, c, &ldc);
  } else {
    gemm_bf16bf16f32_64_(&transpose_b, &transpose_a, &g.n, &rows, &g.k, &one,
                         static_cast<const uint16_t*>(g.b) + b, &ldb,
                         static_cast<const uint16_t*>(g.a) + a, &lda, &beta, c, &ldc);
  }
}

/// f(first, end) over parts of `rows` rows of n elements, on threads.
template <class F> void over_rows(int64_t rows, int64_t n, F&& f) {
  constexpr int64_t kElements = 1 << 15; // of a part
  parallel_blocks(rows, std::max<int64_t>(1, kElements / n),
                  [&](int64_t first, int64_t end, int64_t) { f(first, end); });
}

/// bf16 C goes through a buffer of at most kBufferElements fp32 sums, or kMinRows rows.
void run_to_bf16(const GemmArgs& g, int64_t item, const float* bias) {
  constexpr int64_t kBufferElements = 8 << 20, kMinRows = 128;
  const auto begin = cpu_features().avx512 ? avx512::begin_row : avx2::begin_row;
  const auto round = cpu_features().avx512 ? avx512::round_row : avx2::round_row;
  auto* const c = static_cast<bf16*>(g.c) + item * g.stride_c;
  const bool add = g.accumulate || bias != nullptr;
  const int64_t most = std::min(g.m, std::max(kMinRows, kBufferElements / g.n));
  const PackBuffer buffer(static_cast<size_t>(most * g.n) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  for (int64_t i0 = 0; i0 < g.m; i0 += most) {
    const int64_t rows = std::min(most, g.m - i0);
    if (add) {
      over_rows(rows, g.n, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
          begin(sums + i * g.n, nullptr, g.accumulate ? c + (i0 + i) * g.ldc : nullptr, bias, g.n);
        }
      });
    }
    multiply(g, item, i0, rows, add, sums, g.n);
    over_rows(rows, g.n, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) round(c + (i0 + i) * g.ldc, sums + i * g.n, g.n);
    });
  }
}

void run_to_fp32(const GemmArgs& g, int64_t item, const float* bias) {
  const auto begin = cpu_features().avx512 ? avx512::begin_row : avx2::begin_row;
  auto* const c = static_cast<float*>(g.c) + item * g.stride_c;
  if (bias != nullptr) {
    over_rows(g.m, g.n, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) {
        float* const row = c + i * g.ldc;
        begin(row, g.accumulate ? row : nullptr, nullptr, bias, g.n);
      }
    });
  }
  multiply(g, item, 0, g.m, g.accumulate || bias != nullptr, c, g.ldc);
}

std::string refuse_by_processor(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx2) return "the processor has no AVX2";
  return refuse_common(g, context);
}

} // namespace

std::string refuse_mkl(const GemmArgs& g, const Context& context) {
  if (g.in_dtype != DType::kFloat32 || g.out_dtype != DType::kFloat32)
    return "supports float32 only";
  return refuse_by_processor(g, context);
}

std::string refuse_mkl_bf16(const GemmArgs& g, const Context& context) {
  const std::string reason = refuse_bf16(g, context);
  return reason.empty() ? refuse_by_processor(g, context) : reason;
}

void run_mkl(const GemmArgs& g, const Context&) {
  const MklThreads threads;
  std::vector<float> bias;
  for (int64_t j = 0; g.bias != nullptr && j < g.n; ++j)
    bias.push_back(static_cast<float>(load_as_double(g.bias, g.bias_dtype, j)));
  const float* const added = g.bias != nullptr ? bias.data() : nullptr;
  for (int64_t item = 0; item < g.batch; ++item) {
    if (g.out_dtype == DType::kFloat32) {
      run_to_fp32(g, item, added);
    } else {
      run_to_bf16(g, item, added);
    }
  }
}

void run_mkl_bf16(const GemmArgs& g, const Context& context) {
  run_mkl(g, context);
}

} // namespace pentatron::kernels::gemm_detail

#else

namespace pentatron::kernels::gemm_detail {

std::string refuse_mkl(const GemmArgs&, const Context&) {
  return "this build has no MKL";
}
std::string refuse_mkl_bf16(const GemmArgs&, const Context&) {
  return "this build has no MKL";
}
void run_mkl(const GemmArgs&, const Context&) {}
void run_mkl_bf16(const GemmArgs&, const Context&) {}

} // namespace pentatron::kernels::gemm_detail

#endif

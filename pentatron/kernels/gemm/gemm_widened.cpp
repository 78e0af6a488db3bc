#include "pentatron/kernels/gemm/gemm_widened.h"

#include <algorithm>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/gemm/gemm_simd.h"
#include "pentatron/kernels/gemm/pack_buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pentatron::kernels::gemm_detail {

namespace {

/// Elements of a panel. For few rows B is read once, and its panels should stay in the second-level
/// cache.
constexpr int64_t kPanel = 1 << 21;
constexpr int64_t kThinPanel = 1 << 17;
constexpr int64_t kThinRows = 64;

/// Rows or columns of C of a panel with `depth` elements each: a multiple of 64.
int64_t panel_size(int64_t size, int64_t depth, int64_t elements) {
  const int64_t wanted = elements / std::max<int64_t>(depth, 1) / 64 * 64;
  return std::min(size, std::max<int64_t>(wanted, 64));
}

/// A matrix of bf16 or fp16 as it lies in memory.
template <class T> struct Source {
  const T* data;
  int64_t ld;
};

#if defined(__x86_64__)
/// A scalar conversion has branches. Called with AVX2 alone.
__attribute__((target("avx2,f16c"))) void widen_row(const fp16* from, int64_t n, float* to) {
  int64_t j = 0;
  for (; j + 8 <= n; j += 8)
    _mm256_storeu_ps(to + j,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j))));
  for (; j < n; ++j) to[j] = _cvtsh_ss(from[j].bits);
}
__attribute__((target("avx2,f16c"))) void narrow_row(const float* from, int64_t n, fp16* to) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t j = 0;
  for (; j + 8 <= n; j += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + j),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + j), kNearest));
  for (; j < n; ++j) to[j].bits = _cvtss_sh(from[j], kNearest);
}
#else
void widen_row(const fp16* from, int64_t n, float* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = to_acc(from[j]);
}
void narrow_row(const float* from, int64_t n, fp16* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = from_acc<fp16>(from[j]);
}
#endif
void widen_row(const bf16* from, int64_t n, float* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = to_acc(from[j]);
}
void narrow_row(const float* from, int64_t n, bf16* to) {
  for (int64_t j = 0; j < n; ++j) to[j] = from_acc<bf16>(from[j]);
}

/// rows x columns of `source` to packed fp32.
template <class T> void widen(const Source<T>& source, int64_t rows, int64_t columns, float* out) {
  const int64_t block = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(columns, 1));
  parallel_blocks(rows, block, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t i = begin; i < end; ++i)
      widen_row(source.data + i * source.ld, columns, out + i * columns);
  });
}

/// rows x columns of packed fp32, rounded.
template <class T> void narrow(const float* x, int64_t rows, int64_t columns, T* out, int64_t ld) {
  const int64_t block = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(columns, 1));
  parallel_blocks(rows, block, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t i = begin; i < end; ++i) narrow_row(x + i * columns, columns, out + i * ld);
  });
}

using Multiply = void(const GemmArgs&, const Context&);

/// One product of the batch, of elements T.
template <class T> class Widened {
 public:
  Widened(const GemmArgs& g, int64_t item, Multiply* multiply)
      : g_(g), multiply_(multiply), a_{static_cast<const T*>(g.a) + item * g.stride_a, g.lda},
        b_{static_cast<const T*>(g.b) + item * g.stride_b, g.ldb},
        c_(static_cast<char*>(g.c) +
           item * g.stride_c * static_cast<int64_t>(element_size(g.out_dtype))) {
    rows_ = panel_size(g.m, g.k, kPanel);
    columns_ = panel_size(g.n, g.k, g.m <= kThinRows ? kThinPanel : kPanel);
  }

  void run() {
    const bool round = g_.out_dtype != DType::kFloat32;
    const auto floats = [](int64_t n) { return static_cast<size_t>(n) * sizeof(float); };
    const PackBuffer a(floats(rows_ * g_.k)), b(floats(columns_ * g_.k)),
        c(round ? floats(rows_ * columns_) : 0);
    const bool one_panel_of_a = rows_ == g_.m;
    if (one_panel_of_a) widen_a(0, g_.m, floats_of(a));
    for (int64_t j = 0; j < g_.n; j += columns_) {
      const int64_t n = std::min(columns_, g_.n - j);
      widen_b(j, n, floats_of(b));
      for (int64_t i = 0; i < g_.m; i += rows_) {
        const int64_t m = std::min(rows_, g_.m - i);
        if (g_.lower && j >= i + m) continue; // above the diagonal
        if (!one_panel_of_a) widen_a(i, m, floats_of(a));
        product(i, m, j, n, floats_of(a), floats_of(b), round ? floats_of(c) : nullptr);
      }
    }
  }

 private:
  static float* floats_of(const PackBuffer& buffer) {
    return reinterpret_cast<float*>(buffer.data());
  }

  void widen_a(int64_t i, int64_t m, float* out) const {
    if (g_.transpose_a) return widen<T>({a_.data + i, a_.ld}, g_.k, m, out);
    widen<T>({a_.data + i * a_.ld, a_.ld}, m, g_.k, out);
  }
  void widen_b(int64_t j, int64_t n, float* out) const {
    if (g_.transpose_b) return widen<T>({b_.data + j * b_.ld, b_.ld}, n, g_.k, out);
    widen<T>({b_.data + j, b_.ld}, g_.k, n, out);
  }

  /// A block of C from widened panels, through `scratch` if C is rounded.
  void product(int64_t i, int64_t m, int64_t j, int64_t n, const float* a, const float* b,
               float* scratch) const {
    GemmArgs g = g_;
    g.in_dtype = g.out_dtype = DType::kFloat32;
    g.m = m;
    g.n = n;
    g.a = a;
    g.lda = g.transpose_a ? m : g.k;
    g.b = b;
    g.ldb = g.transpose_b ? g.k : n;
    g.batch = 1;
    g.lower = false; // a panel is no triangle
    if (g.bias != nullptr)
      g.bias =
          static_cast<const char*>(g.bias) + j * static_cast<int64_t>(element_size(g.bias_dtype));
    if (scratch == nullptr) {
      g.c = reinterpret_cast<float*>(c_) + i * g_.ldc + j;
      return multiply_(g, {});
    }
    T* const c = reinterpret_cast<T*>(c_) + i * g_.ldc + j;
    if (g.accumulate) widen<T>({c, g_.ldc}, m, n, scratch);
    g.c = scratch;
    g.ldc = n;
    multiply_(g, {});
    narrow(scratch, m, n, c, g_.ldc);
  }

  GemmArgs g_;
  Multiply* multiply_;
  Source<T> a_, b_;
  char* c_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
};

} // namespace

std::string refuse_widened(const GemmArgs& g, const Context& context) {
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  return g.in_dtype == DType::kFloat16 ? refuse_fp16(g, context) : refuse_bf16(g, context);
}

void multiply_widened(const GemmArgs& g, Multiply* multiply) {
  for (int64_t item = 0; item < g.batch; ++item) {
    if (g.in_dtype == DType::kFloat16) {
      Widened<fp16>(g, item, multiply).run();
    } else {
      Widened<bf16>(g, item, multiply).run();
    }
  }
}

void run_widened(const GemmArgs& g, const Context&) {
  multiply_widened(g, run_avx512);
}

} // namespace pentatron::kernels::gemm_detail

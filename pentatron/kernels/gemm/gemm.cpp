#include "pentatron/kernels/gemm/gemm.h"

#include <array>

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/gemm/gemm_simd.h"
#include "pentatron/kernels/gemm/gemm_widened.h"

namespace pentatron::kernels {
namespace {

std::string refuse_reference(const GemmArgs& g, const Context& context) {
  if (context.device != Device::kCpu) return "needs CPU memory";
  if ((g.in_dtype == DType::kFloat64) != (g.out_dtype == DType::kFloat64))
    return "float64 does not mix with other types";
  if (g.in_dtype == DType::kFloat32 && g.out_dtype != DType::kFloat32)
    return "float32 inputs give float32 only";
  return {};
}

constexpr std::array<Entry<GemmArgs>, 8> kEntries = {{
    {"amx_bf16", gemm_detail::refuse_amx_bf16, gemm_detail::run_amx_bf16},
    {"avx512_bf16", gemm_detail::refuse_avx512_bf16, gemm_detail::run_avx512_bf16},
    {"avx512", gemm_detail::refuse_avx512, gemm_detail::run_avx512},
    {"widened", gemm_detail::refuse_widened, gemm_detail::run_widened},
    {"avx2", gemm_detail::refuse_avx2, gemm_detail::run_avx2},
    {"mkl_bf16", gemm_detail::refuse_mkl_bf16, gemm_detail::run_mkl_bf16},
    {"mkl", gemm_detail::refuse_mkl, gemm_detail::run_mkl},
    {"reference", refuse_reference, gemm_reference},
}};

void check(const GemmArgs& g) {
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0) {
    raise<ShapeError>("gemm: m={} n={} k={} batch={} must not be negative", g.m, g.n, g.k, g.batch);
  }
  if (g.lower && g.m != g.n)
    raise<ShapeError>("gemm: m={} and n={} of a lower triangle are not equal", g.m, g.n);
  const int64_t width_a = g.transpose_a ? g.m : g.k;
  const int64_t width_b = g.transpose_b ? g.k : g.n;
  if (g.lda < width_a)
    raise<ShapeError>("gemm: lda={} is less than the {} elements of a row of A", g.lda, width_a);
  if (g.ldb < width_b)
    raise<ShapeError>("gemm: ldb={} is less than the {} elements of a row of B", g.ldb, width_b);
  if (g.ldc < g.n)
    raise<ShapeError>("gemm: ldc={} is less than the n={} elements of a row of C", g.ldc, g.n);
}

const Entry<GemmArgs>* find(const GemmArgs& args, const Context& context) {
  const OpClass c =
      gemm_class(args.in_dtype, args.out_dtype, args.transpose_a, args.transpose_b, args.n, args.k);
  return find_entry(c, gemm_entries(), args, context);
}

} // namespace

std::span<const Entry<GemmArgs>> gemm_entries() {
  return kEntries;
}

bool gemm_supported(const GemmArgs& args, const Context& context) {
  const Entry<GemmArgs>* entry = find(args, context);
  return entry != nullptr && entry->run != gemm_reference;
}

std::string_view gemm_entry(const GemmArgs& args, const Context& context) {
  const Entry<GemmArgs>* entry = find(args, context);
  return entry == nullptr ? "none" : entry->name;
}

void gemm(const GemmArgs& args, const Context& context) {
  check(args);
  const Entry<GemmArgs>* entry = find(args, context);
  if (entry == nullptr) {
    raise<ShapeError>("gemm: no implementation takes {} to {}{}", name(args.in_dtype),
                      name(args.out_dtype), refusals(gemm_entries(), args, context));
  }
  if (args.m == 0 || args.n == 0 || args.batch == 0) return;
  entry->run(args, context);
}

} // namespace pentatron::kernels

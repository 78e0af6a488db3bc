#include "pentatron/kernels/optimizer/optimizer_entries.h"

#if defined(__x86_64__)

#include <limits>
#include <vector>

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/optimizer/narrow_codes.h"

#define PT_SIMD_BODY "pentatron/kernels/optimizer/optimizer_simd_body.h"
#define PT_SIMD_NO_CONTRACTION
#include "pentatron/kernels/common/foreach_isa.h"

namespace pentatron::kernels::optimizer_avx2 {

void adamw(const AdamWArgs& a, const Context& c) {
  avx2::adamw(a, c);
}
void sgd(const SgdArgs& a, const Context& c) {
  avx2::sgd(a, c);
}
void lion(const LionArgs& a, const Context& c) {
  avx2::lion(a, c);
}
void sum_of_squares(const SumOfSquaresArgs& a, const Context& c) {
  avx2::sum_of_squares(a, c);
}
void find_nonfinite(const NonfiniteArgs& a, const Context& c) {
  avx2::find_nonfinite(a, c);
}
void scale(const ScaleArgs& a, const Context& c) {
  avx2::scale(a, c);
}
void cast(const CastArgs& a, const Context& c) {
  avx2::cast(a, c);
}
void store_narrow(const StoreNarrowArgs& a, const Context&) {
  avx2::store_narrow(a);
}
void load_narrow(const LoadNarrowArgs& a, const Context&) {
  avx2::load_narrow(a);
}

} // namespace pentatron::kernels::optimizer_avx2

namespace pentatron::kernels::optimizer_avx512 {

void adamw(const AdamWArgs& a, const Context& c) {
  avx512::adamw(a, c);
}
void sgd(const SgdArgs& a, const Context& c) {
  avx512::sgd(a, c);
}
void lion(const LionArgs& a, const Context& c) {
  avx512::lion(a, c);
}
void sum_of_squares(const SumOfSquaresArgs& a, const Context& c) {
  avx512::sum_of_squares(a, c);
}
void find_nonfinite(const NonfiniteArgs& a, const Context& c) {
  avx512::find_nonfinite(a, c);
}
void scale(const ScaleArgs& a, const Context& c) {
  avx512::scale(a, c);
}
void cast(const CastArgs& a, const Context& c) {
  avx512::cast(a, c);
}
void store_narrow(const StoreNarrowArgs& a, const Context&) {
  avx512::store_narrow(a);
}
void load_narrow(const LoadNarrowArgs& a, const Context&) {
  avx512::load_narrow(a);
}

} // namespace pentatron::kernels::optimizer_avx512

#endif

#include "pentatron/kernels/quantize/fp8_codes.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/quantize/fp8_codes_entries.h"

namespace pentatron::kernels {

namespace {

template <class Args>
constexpr Entry<Args> kEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, Fp8CodesCuda::run},
#endif
    {"reference", refuse_unless_cpu, Fp8CodesReference::run},
};

} // namespace

std::span<const Entry<RaiseAmax>> raise_amax_entries() {
  return kEntries<RaiseAmax>;
}
std::span<const Entry<Fp8Codes>> fp8_codes_entries() {
  return kEntries<Fp8Codes>;
}

void raise_amax(const RaiseAmax& args, const Context& context) {
  if (args.n > 0) run_first("raise_amax", raise_amax_entries(), args, context);
}

void fp8_codes(const Fp8Codes& args, const Context& context) {
  if (args.rows < 0 || args.cols < 0 || args.stride < (args.transposed ? args.rows : args.cols))
    raise<ShapeError>("fp8_codes of [{}, {}] in rows of {}: a size is too small", args.rows,
                      args.cols, args.stride);
  if (!traits(args.recipe).tensorwise())
    raise<ShapeError>("fp8_codes: {} has a scale for each block", traits(args.recipe).name);
  run_first("fp8_codes", fp8_codes_entries(), args, context);
}

} // namespace pentatron::kernels

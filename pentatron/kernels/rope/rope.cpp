#include "pentatron/kernels/rope/rope.h"

#include "pentatron/base/error.h"
#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/rope/rope_entries.h"

namespace pentatron::kernels {

namespace {

constexpr Entry<Rope> kEntries[] = {
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, RopeCuda::run},
#endif
#if defined(__x86_64__)
    {"avx512", refuse_float64_or_no_avx512, RopeAvx512::run},
    {"avx2", refuse_float64_or_no_avx2, RopeAvx2::run},
#endif
    {"reference", refuse_unless_cpu, RopeReference::run},
};

void check(const Rope& a, const Context& context) {
  if (a.tokens < 0 || a.heads < 0 || a.head_size < 0)
    raise<ShapeError>("rope over tokens={}, heads={}, head_size={}: a size is negative", a.tokens,
                      a.heads, a.head_size);
  if (a.rotary_dim < 0 || a.rotary_dim % 2 != 0 || a.rotary_dim > a.head_size)
    raise<ShapeError>("rope: rotary_dim={} is not an even number up to head_size={}", a.rotary_dim,
                      a.head_size);
  if (context.device != Device::kCpu) return;
  for (int64_t t = 0; t < a.tokens; ++t)
    if (a.positions[t] < 0 || a.positions[t] >= a.max_position)
      raise<ShapeError>("rope: position {} of token {} is outside the tables of {} positions",
                        a.positions[t], t, a.max_position);
}

} // namespace

std::span<const Entry<Rope>> rope_entries() {
  return kEntries;
}

void rope(const Rope& args, const Context& context) {
  check(args, context);
  if (args.tokens == 0 || args.heads == 0) return;
  Rope full = args;
  if (full.x_head_stride == 0) full.x_head_stride = args.head_size;
  if (full.y_head_stride == 0) full.y_head_stride = args.head_size;
  if (full.x_token_stride == 0) full.x_token_stride = args.heads * full.x_head_stride;
  if (full.y_token_stride == 0) full.y_token_stride = args.heads * full.y_head_stride;
  run_entry(op_class(Op::kRope, full.dtype), rope_entries(), full, context);
}

} // namespace pentatron::kernels

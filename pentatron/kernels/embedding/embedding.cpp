#include "pentatron/kernels/embedding/embedding.h"

#include "pentatron/kernels/common/dispatch.h"
#include "pentatron/kernels/common/refuse.h"
#include "pentatron/kernels/embedding/embedding_entries.h"

namespace pentatron::kernels {

std::span<const Entry<EmbeddingArgs>> embedding_entries() {
  static const Entry<EmbeddingArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512, embedding_avx512::forward},
    {"avx2", refuse_unless_avx2, embedding_avx2::forward},
#endif
    {"reference", refuse_unless_cpu, embedding_reference::forward},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, embedding_cuda::forward},
#endif
  };
  return entries;
}

std::span<const Entry<EmbeddingGradientArgs>> embedding_gradient_entries() {
  static const Entry<EmbeddingGradientArgs> entries[] = {
#if defined(__x86_64__)
    {"avx512", refuse_unless_avx512, embedding_avx512::gradient},
    {"avx2", refuse_unless_avx2, embedding_avx2::gradient},
#endif
    {"reference", refuse_unless_cpu, embedding_reference::gradient},
#ifdef PENTATRON_CUDA
    {"cuda", refuse_unless_cuda, embedding_cuda::gradient},
#endif
  };
  return entries;
}

void embedding(const EmbeddingArgs& args, const Context& context) {
  if ((args.dtype == DType::kFloat64) != (args.out_dtype == DType::kFloat64)) {
    raise<ShapeError>("embedding: a {} table has no {} output", name(args.dtype),
                      name(args.out_dtype));
  }
  run_entry(op_class(Op::kEmbedding, args.dtype), embedding_entries(), args, context);
}

void embedding_gradient(const EmbeddingGradientArgs& args, const Context& context) {
  if (args.grad_dtype != acc_dtype(args.dtype)) {
    raise<ShapeError>("embedding_gradient: main_grad of {} values is {}, not {}", name(args.dtype),
                      name(acc_dtype(args.dtype)), name(args.grad_dtype));
  }
  if (context.device == Device::kCuda && context.workspace.size() < workspace_bytes(args)) {
    raise<ShapeError>("embedding_gradient on CUDA needs a workspace of {} bytes, not {}",
                      workspace_bytes(args), context.workspace.size());
  }
  run_entry(op_class(Op::kEmbeddingGradient, args.dtype), embedding_gradient_entries(), args,
            context);
}

size_t workspace_bytes(const EmbeddingGradientArgs& args) {
  const int64_t tiles = (args.tokens + kSortTile - 1) / kSortTile;
  return static_cast<size_t>(4 * args.tokens + 256 * tiles) * sizeof(uint32_t);
}

int64_t first_bad_id(const int64_t* ids, int64_t n, int64_t vocab, bool allow_negative) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] >= vocab || (ids[i] < 0 && !allow_negative)) return i;
  }
  return -1;
}

} // namespace pentatron::kernels

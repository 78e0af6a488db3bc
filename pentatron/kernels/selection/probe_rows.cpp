// Examples of the operators over rows, of the loss, and of flat buffers. Work is the bytes that one
// run must read and write.
#include "pentatron/kernels/activation/activation.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/kernels/cross_entropy/cross_entropy.h"
#include "pentatron/kernels/dropout/dropout.h"
#include "pentatron/kernels/embedding/embedding.h"
#include "pentatron/kernels/norm/norm.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "pentatron/kernels/optimizer/optimizer.h"
#include "pentatron/kernels/rope/rope.h"
#include "pentatron/kernels/rows/rows.h"
#include "pentatron/kernels/selection/probe_detail.h"

namespace pentatron::kernels::selection_detail {

namespace {

constexpr int64_t kColumns = 1024;
constexpr int64_t kVocab = 2048;
constexpr int64_t kBuffer = 1 << 18; ///< elements of a flat buffer

DType dtype_of(const Probe& probe) {
  return static_cast<DType>(probe.op_class.part);
}

void probe_norm(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe), acc = acc_dtype(dtype);
  const int64_t rows = arguments.rows(), n = rows * kColumns;
  if (probe.op_class.op == Op::kNormForward) {
    probe.work = bytes(dtype, 2 * n);
    add_entries(probe, norm_forward_entries(),
                NormForward{.dtype = dtype,
                            .weight_dtype = dtype,
                            .rows = rows,
                            .cols = kColumns,
                            .x = arguments.input(dtype, n),
                            .weight = arguments.input(dtype, kColumns),
                            .y = arguments.output(dtype, n),
                            .rstd = arguments.output(acc, rows)});
    return;
  }
  probe.work = bytes(dtype, 3 * n);
  const NormBackward backward{.dtype = dtype,
                              .weight_dtype = dtype,
                              .rows = rows,
                              .cols = kColumns,
                              .dy = arguments.input(dtype, n),
                              .x = arguments.input(dtype, n),
                              .weight = arguments.input(dtype, kColumns),
                              .rstd = arguments.input(acc, rows),
                              .dx = arguments.output(dtype, n),
                              .dweight = arguments.output(acc, kColumns)};
  add_entries(probe, norm_backward_entries(), backward,
              arguments.workspace(
                  workspace_bytes(backward, built_with_cuda() ? Device::kCuda : Device::kCpu)));
}

void probe_activation(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  const int64_t rows = arguments.rows(), n = rows * kColumns;
  if (probe.op_class.op == Op::kActivationForward) {
    probe.work = bytes(dtype, 3 * n);
    add_entries(probe, activation_forward_entries(),
                ActivationForward{.kind = Activation::kSilu,
                                  .gated = true,
                                  .dtype = dtype,
                                  .bias_dtype = dtype,
                                  .rows = rows,
                                  .cols = kColumns,
                                  .x = arguments.input(dtype, 2 * n),
                                  .y = arguments.output(dtype, n),
                                  .x_stride = 2 * kColumns,
                                  .y_stride = kColumns});
    return;
  }
  probe.work = bytes(dtype, 5 * n);
  add_entries(probe, activation_backward_entries(),
              ActivationBackward{.kind = Activation::kSilu,
                                 .gated = true,
                                 .dtype = dtype,
                                 .bias_dtype = dtype,
                                 .rows = rows,
                                 .cols = kColumns,
                                 .dy = arguments.input(dtype, n),
                                 .x = arguments.input(dtype, 2 * n),
                                 .dx = arguments.output(dtype, 2 * n),
                                 .dy_stride = kColumns,
                                 .x_stride = 2 * kColumns,
                                 .dx_stride = 2 * kColumns});
}

void probe_rope(Probe& probe, Arguments& arguments) {
  constexpr int64_t kHeadSize = 64, kHeads = kColumns / kHeadSize;
  const DType dtype = dtype_of(probe), acc = acc_dtype(dtype);
  const int64_t tokens = arguments.rows();
  probe.work = bytes(dtype, 2 * tokens * kColumns);
  add_entries(probe, rope_entries(),
              Rope{.dtype = dtype,
                   .tokens = tokens,
                   .heads = kHeads,
                   .head_size = kHeadSize,
                   .rotary_dim = kHeadSize,
                   .x = arguments.input(dtype, tokens * kColumns),
                   .y = arguments.output(dtype, tokens * kColumns),
                   .x_token_stride = kColumns,
                   .x_head_stride = kHeadSize,
                   .y_token_stride = kColumns,
                   .y_head_stride = kHeadSize,
                   .cos = arguments.input(acc, kHeadSize / 2),
                   .sin = arguments.input(acc, kHeadSize / 2),
                   .max_position = 1,
                   .positions = arguments.values<int32_t>(tokens)});
}

void probe_dropout(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  const int64_t n = arguments.rows() * kColumns;
  probe.work = bytes(dtype, 2 * n);
  add_entries(probe, dropout_entries(),
              Dropout{.dtype = dtype,
                      .rows = arguments.rows(),
                      .cols = kColumns,
                      .x = arguments.input(dtype, n),
                      .y = arguments.output(dtype, n),
                      .x_stride = kColumns,
                      .residual_stride = kColumns,
                      .y_stride = kColumns,
                      .p = 0.1,
                      .key = {1, 2}});
}

void probe_sum_rows(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  const int64_t rows = arguments.rows(), k = 2;
  probe.work = bytes(dtype, (k + 1) * rows * kColumns);
  add_entries(probe, sum_rows_entries(),
              SumRows{.dtype = dtype,
                      .rows = rows,
                      .k = k,
                      .cols = kColumns,
                      .x = arguments.input(dtype, rows * kColumns),
                      .places = arguments.ids(k * rows, rows),
                      .y = arguments.output(dtype, rows * kColumns)});
}

} // namespace

void probe_rows(Probe& probe, Arguments& arguments) {
  switch (probe.op_class.op) {
  case Op::kNormForward:
  case Op::kNormBackward:
    return probe_norm(probe, arguments);
  case Op::kRope:
    return probe_rope(probe, arguments);
  case Op::kDropout:
    return probe_dropout(probe, arguments);
  case Op::kSumRows:
    return probe_sum_rows(probe, arguments);
  default:
    return probe_activation(probe, arguments);
  }
}

namespace {

void probe_cross_entropy(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe), acc = acc_dtype(dtype);
  const int64_t rows = arguments.rows(), n = rows * kVocab;
  const void* const logits = arguments.input(dtype, n);
  const int64_t* const target = arguments.ids(rows, kVocab);
  probe.work = bytes(dtype, probe.op_class.op == Op::kCrossEntropyStats ? n : 2 * n);
  if (probe.op_class.op == Op::kCrossEntropyStats) {
    add_entries(probe, cross_entropy_stats_entries(),
                CrossEntropyStatsArgs{.dtype = dtype,
                                      .rows = rows,
                                      .columns = kVocab,
                                      .row_stride = kVocab,
                                      .logits = logits,
                                      .target = target,
                                      .max = arguments.output(acc, rows),
                                      .sum_exp = arguments.output(acc, rows),
                                      .target_logit = arguments.output(acc, rows)});
  } else if (probe.op_class.op == Op::kCrossEntropyGradient) {
    add_entries(probe, cross_entropy_gradient_entries(),
                CrossEntropyGradientArgs{.dtype = dtype,
                                         .out_dtype = dtype,
                                         .rows = rows,
                                         .columns = kVocab,
                                         .padded_columns = kVocab,
                                         .row_stride = kVocab,
                                         .out_row_stride = kVocab,
                                         .logits = logits,
                                         .target = target,
                                         .max = arguments.input(acc, rows),
                                         .sum_exp = arguments.input(acc, rows),
                                         .row_scale = arguments.input(acc, rows),
                                         .global_vocab = kVocab,
                                         .gradient = arguments.output(dtype, n)});
  } else {
    add_entries(probe, cross_entropy_entries(),
                CrossEntropyArgs{.dtype = dtype,
                                 .out_dtype = dtype,
                                 .rows = rows,
                                 .columns = kVocab,
                                 .padded_columns = kVocab,
                                 .row_stride = kVocab,
                                 .out_row_stride = kVocab,
                                 .logits = logits,
                                 .target = target,
                                 .row_scale = arguments.input(acc, rows),
                                 .lse = arguments.output(acc, rows),
                                 .loss = arguments.output(acc, rows),
                                 .gradient = arguments.output(dtype, n)});
  }
}

} // namespace

void probe_loss(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  const int64_t tokens = arguments.rows(), n = tokens * kColumns;
  probe.work = bytes(dtype, 2 * n);
  if (probe.op_class.op == Op::kEmbedding) {
    add_entries(probe, embedding_entries(),
                EmbeddingArgs{.dtype = dtype,
                              .out_dtype = dtype,
                              .tokens = tokens,
                              .width = kColumns,
                              .table = arguments.input(dtype, kVocab * kColumns),
                              .rows = kVocab,
                              .ids = arguments.ids(tokens, kVocab),
                              .out = arguments.output(dtype, n)});
  } else if (probe.op_class.op == Op::kEmbeddingGradient) {
    const DType acc = acc_dtype(dtype);
    probe.work = bytes(dtype, n) + bytes(acc, 2 * n);
    add_entries(probe, embedding_gradient_entries(),
                EmbeddingGradientArgs{.dtype = dtype,
                                      .grad_dtype = acc,
                                      .tokens = tokens,
                                      .width = kColumns,
                                      .dy = arguments.input(dtype, n),
                                      .ids = arguments.ids(tokens, kVocab),
                                      .rows = kVocab,
                                      .main_grad = arguments.output(acc, kVocab * kColumns)});
  } else {
    probe_cross_entropy(probe, arguments);
  }
}

namespace {

void probe_adamw(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  const bool copies = dtype == DType::kFloat32;
  probe.work = bytes(dtype, 7 * kBuffer) + (copies ? bytes(DType::kBFloat16, kBuffer) : 0);
  add_entries(
      probe, adamw_entries(),
      AdamWArgs{.dtype = dtype,
                .n = kBuffer,
                .param = arguments.output(dtype, kBuffer),
                .grad = arguments.input(dtype, kBuffer),
                .exp_avg = arguments.output(dtype, kBuffer),
                .exp_avg_sq = arguments.output(dtype, kBuffer),
                .param_copy = copies ? arguments.output(DType::kBFloat16, kBuffer) : nullptr});
}

void probe_sgd(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  probe.work = bytes(dtype, 5 * kBuffer);
  add_entries(probe, sgd_entries(),
              SgdArgs{.dtype = dtype,
                      .n = kBuffer,
                      .param = arguments.output(dtype, kBuffer),
                      .grad = arguments.input(dtype, kBuffer),
                      .momentum_buffer = arguments.output(dtype, kBuffer),
                      .momentum = 0.9});
}

void probe_lion(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  probe.work = bytes(dtype, 5 * kBuffer);
  add_entries(probe, lion_entries(),
              LionArgs{.dtype = dtype,
                       .n = kBuffer,
                       .param = arguments.output(dtype, kBuffer),
                       .grad = arguments.input(dtype, kBuffer),
                       .exp_avg = arguments.output(dtype, kBuffer)});
}

} // namespace

void probe_buffers(Probe& probe, Arguments& arguments) {
  const DType dtype = dtype_of(probe);
  probe.work = bytes(dtype, kBuffer);
  switch (probe.op_class.op) {
  case Op::kAdamW:
    return probe_adamw(probe, arguments);
  case Op::kSgd:
    return probe_sgd(probe, arguments);
  case Op::kLion:
    return probe_lion(probe, arguments);
  case Op::kSumOfSquares:
    return add_entries(probe, sum_of_squares_entries(),
                       SumOfSquaresArgs{.dtype = dtype,
                                        .n = kBuffer,
                                        .x = arguments.input(dtype, kBuffer),
                                        .result = arguments.values<double>(1)});
  case Op::kFindNonfinite:
    return add_entries(probe, find_nonfinite_entries(),
                       NonfiniteArgs{.dtype = dtype,
                                     .n = kBuffer,
                                     .x = arguments.input(dtype, kBuffer),
                                     .count = arguments.values<int64_t>(1),
                                     .first_index = arguments.values<int64_t>(1)});
  case Op::kScale:
    probe.work *= 2;
    return add_entries(
        probe, scale_entries(),
        ScaleArgs{
            .dtype = dtype, .n = kBuffer, .x = arguments.output(dtype, kBuffer), .factor = 0.5});
  default:
    const DType out = dtype == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32;
    probe.work += bytes(out, kBuffer);
    return add_entries(probe, cast_entries(),
                       CastArgs{.dtype = dtype,
                                .out_dtype = out,
                                .n = kBuffer,
                                .x = arguments.input(dtype, kBuffer),
                                .out = arguments.output(out, kBuffer)});
  }
}

} // namespace pentatron::kernels::selection_detail

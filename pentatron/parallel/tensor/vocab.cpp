#include "pentatron/parallel/tensor/vocab.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/differentiable.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/kernels/cross_entropy/cross_entropy.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/record.h"

namespace pentatron::parallel {

namespace {

constexpr int64_t kVocabMultiple = 64;

int64_t chunk_bytes(const at::Tensor& h) {
  if (!h.is_cuda()) return logits_bytes_on_cpu();
  static const int64_t memory = kernels::gpu_memory(h.device().index()); // a process has one GPU
  return logits_bytes_on_gpu(memory);
}

/// The pieces of one forward pass that all chunks share.
struct LossPass {
  at::Tensor h, labels, dh, losses;
  VocabShare share;
  nn::Param* weight;
  nn::Param* bias;
  VocabAdapter::Pass* adapter; ///< null: none
  comm::Group tp;
  double scale;
  double cap;
  bool with_gradient;
  bool count_hits;
  at::Tensor hits = {}; ///< targets with the largest logit, 0-dim int64
};

void cap_logits(const at::Tensor& logits, double cap) {
  if (cap > 0) logits.div_(cap).tanh_().mul_(cap);
}

/// The derivative of cap_logits at what it has made: 1 - (y / cap)^2.
void write_slopes(const at::Tensor& out, const at::Tensor& logits, double cap) {
  out.copy_(logits).div_(cap).square_().neg_().add_(1);
}

/// `x` may have fewer bits than the factors, which LibTorch multiplies on CPUs in copies with more:
/// of few rows.
void multiply_rows(const at::Tensor& x, const at::Tensor& factors) {
  constexpr int64_t kElements = int64_t{1} << 18;
  const int64_t all = x.size(0), wide = std::max<int64_t>(1, kElements / x.size(1));
  const int64_t rows = x.scalar_type() == factors.scalar_type() || x.is_cuda() ? all : wide;
  for (int64_t begin = 0; begin < all; begin += rows) {
    const int64_t count = std::min(rows, all - begin);
    x.narrow(0, begin, count).mul_(factors.narrow(0, begin, count));
  }
}

at::Tensor per_row(const at::Tensor& logits) {
  return at::empty({logits.size(0)}, logits.options());
}

/// Softmax statistics over all ranks.
struct Statistics {
  at::Tensor max, sum_exp;
};

/// Writes the loss of a chunk over ranks.
Statistics reduced_loss(const LossPass& pass, const at::Tensor& logits, const at::Tensor& labels,
                        const at::Tensor& loss) {
  const nn::KernelContext context(logits);
  const kernels::DType dtype = nn::kernel_dtype(logits.scalar_type());
  const at::Tensor max = per_row(logits), sum_exp = per_row(logits), target = per_row(logits),
                   lse = per_row(logits);
  kernels::cross_entropy_stats({.dtype = dtype,
                                .rows = logits.size(0),
                                .columns = pass.share.real,
                                .row_stride = logits.stride(0),
                                .logits = logits.data_ptr(),
                                .target = labels.data_ptr<int64_t>(),
                                .vocab_offset = pass.share.offset,
                                .max = max.data_ptr(),
                                .sum_exp = sum_exp.data_ptr(),
                                .target_logit = target.data_ptr()},
                               context);
  const at::Tensor global_max = planted("loss_maximum_of_one_rank")
                                    ? max
                                    : comm::all_reduce(max, comm::ReduceOp::kMax, pass.tp);
  kernels::cross_entropy_rescale({.dtype = dtype,
                                  .rows = logits.size(0),
                                  .local_max = max.data_ptr(),
                                  .global_max = global_max.data_ptr(),
                                  .sum_exp = sum_exp.data_ptr()},
                                 context);
  comm::all_reduce_(sum_exp, comm::ReduceOp::kSum, pass.tp);
  comm::all_reduce_(target, comm::ReduceOp::kSum, pass.tp);
  kernels::cross_entropy_loss({.dtype = dtype,
                               .rows = logits.size(0),
                               .target = labels.data_ptr<int64_t>(),
                               .max = global_max.data_ptr(),
                               .sum_exp = sum_exp.data_ptr(),
                               .target_logit = target.data_ptr(),
                               .lse = lse.data_ptr(),
                               .loss = loss.data_ptr()},
                              context);
  return {global_max, sum_exp};
}

/// Where the gradient of logits is written, in the type `type`: over the logits where the kernels
/// can.
at::Tensor place_of_gradient(const at::Tensor& logits, at::ScalarType type) {
  if (type == logits.scalar_type()) return logits;
  if (logits.is_cpu() && c10::elementSize(type) < logits.itemsize())
    return logits.view(type).narrow(1, 0, logits.size(1));
  return at::empty(logits.sizes(), logits.options().dtype(type));
}

/// Loss and, if wanted, the gradient of logits in the type of the weight.
at::Tensor chunk_gradient(const LossPass& pass, const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& loss) {
  const nn::KernelContext context(logits);
  const kernels::DType dtype = nn::kernel_dtype(logits.scalar_type());
  const at::ScalarType out_type = pass.h.scalar_type();
  at::Tensor gradient, row_scale;
  if (pass.with_gradient) {
    gradient = place_of_gradient(logits, out_type);
    row_scale = at::full({logits.size(0)}, pass.scale, logits.options());
  }
  if (pass.tp.size() == 1) {
    const at::Tensor lse = per_row(logits);
    kernels::cross_entropy({.dtype = dtype,
                            .out_dtype = nn::kernel_dtype(out_type),
                            .rows = logits.size(0),
                            .columns = pass.share.real,
                            .padded_columns = pass.share.padded,
                            .row_stride = logits.stride(0),
                            .out_row_stride = pass.with_gradient ? gradient.stride(0) : 0,
                            .logits = logits.data_ptr(),
                            .target = labels.data_ptr<int64_t>(),
                            .row_scale = nn::data_or_null(row_scale),
                            .lse = lse.data_ptr(),
                            .loss = loss.data_ptr(),
                            .gradient = nn::data_or_null(gradient)},
                           context);
    return gradient;
  }
  const Statistics statistics = reduced_loss(pass, logits, labels, loss);
  if (!pass.with_gradient) return gradient;
  kernels::cross_entropy_gradient({.dtype = dtype,
                                   .out_dtype = nn::kernel_dtype(out_type),
                                   .rows = logits.size(0),
                                   .columns = pass.share.real,
                                   .padded_columns = pass.share.padded,
                                   .row_stride = logits.stride(0),
                                   .out_row_stride = gradient.stride(0),
                                   .logits = logits.data_ptr(),
                                   .target = labels.data_ptr<int64_t>(),
                                   .vocab_offset = pass.share.offset,
                                   .max = statistics.max.data_ptr(),
                                   .sum_exp = statistics.sum_exp.data_ptr(),
                                   .row_scale = row_scale.data_ptr(),
                                   .gradient = gradient.data_ptr()},
                                  context);
  return gradient;
}

/// Targets whose logit is the largest of all ranks'.
at::Tensor count_hits(const LossPass& pass, const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor local = labels - pass.share.offset;
  const at::Tensor here = (local >= 0).logical_and_(local < pass.share.real);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  at::Tensor best = at::full({logits.size(0)}, kNone, logits.options());
  if (pass.share.real > 0) best = logits.narrow(1, 0, pass.share.real).amax(1);
  at::Tensor target = at::full_like(best, kNone);
  if (pass.share.real > 0) {
    const at::Tensor index = local.clamp(0, pass.share.real - 1).unsqueeze(1);
    target = at::where(here, logits.gather(1, index).squeeze(1), kNone).to(logits.scalar_type());
  }
  comm::all_reduce_(best, comm::ReduceOp::kMax, pass.tp);
  comm::all_reduce_(target, comm::ReduceOp::kMax, pass.tp);
  return (labels >= 0).logical_and_(target == best).sum();
}

void run_chunks(LossPass& pass) {
  const nn::MemoryScope scope(nn::MemoryCategory::kWorkspace);
  const int64_t tokens = pass.h.size(0);
  const auto acc = pass.h.options().dtype(nn::acc_dtype(pass.h.scalar_type()));
  const bool twice = pass.adapter != nullptr && pass.adapter->keeps_logits(),
             has_slopes = pass.cap > 0 && pass.with_gradient;
  const int64_t row_bytes = (1 + (twice ? 1 : 0) + (has_slopes ? 1 : 0)) * pass.share.padded *
                            static_cast<int64_t>(acc.dtype().itemsize());
  // Chunks of equal size, so that the last one is not a sliver.
  const int64_t most = chunk_bytes(pass.h),
                count = std::max<int64_t>(1, (tokens * row_bytes + most - 1) / most);
  const int64_t chunk = (tokens + count - 1) / count;
  const at::Tensor buffer = at::empty({std::min(chunk, tokens), pass.share.padded}, acc);
  const at::Tensor slopes = has_slopes ? at::empty_like(buffer) : at::Tensor();
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t rows = std::min(chunk, tokens - begin);
    const at::Tensor h = pass.h.narrow(0, begin, rows), labels = pass.labels.narrow(0, begin, rows);
    const at::Tensor logits = buffer.narrow(0, 0, rows);
    nn::matmul_nt_acc(logits, h, pass.weight->value());
    if (pass.adapter != nullptr) pass.adapter->add(logits, h, begin);
    if (pass.bias != nullptr) logits.add_(pass.bias->value());
    cap_logits(logits, pass.cap);
    if (pass.count_hits) {
      const at::Tensor hits = count_hits(pass, logits, labels);
      pass.hits = pass.hits.defined() ? pass.hits + hits : hits;
    }
    // Of the cap; the gradient may replace the logits.
    if (slopes.defined()) write_slopes(slopes.narrow(0, 0, rows), logits, pass.cap);
    const at::Tensor gradient =
        chunk_gradient(pass, logits, labels, pass.losses.narrow(0, begin, rows));
    if (!pass.with_gradient) continue;
    if (slopes.defined()) multiply_rows(gradient, slopes.narrow(0, 0, rows));
    if (pass.bias != nullptr && pass.bias->trainable)
      pass.bias->main_grad().add_(gradient.sum(0, false, pass.bias->main_grad().scalar_type()));
    if (pass.adapter != nullptr) pass.adapter->accumulate(gradient, h);
    const at::Tensor dh = pass.dh.narrow(0, begin, rows);
    nn::matmul_nn_into(dh, gradient, pass.weight->value());
    if (pass.adapter != nullptr) pass.adapter->add_to(dh);
    if (pass.weight->trainable) nn::add_matmul_tn(*pass.weight, gradient, h);
  }
}

} // namespace

nn::ShardSpec vocab_spec(int64_t vocab_size, int64_t hidden_size) {
  return {.name = {},
          .shape = {vocab_size, hidden_size},
          .shard_multiple = kVocabMultiple,
          .table = true,
          .placements = {{"tp", nn::Placement::shard(0)}}};
}

nn::ShardSpec vocab_bias_spec(int64_t vocab_size) {
  return {.name = {},
          .shape = {vocab_size},
          .shard_multiple = kVocabMultiple,
          .placements = {{"tp", nn::Placement::shard(0)}}};
}

at::Tensor gathered_tokens(const at::Tensor& x, const TensorParallel& tp) {
  const nn::NoAutograd guard;
  const at::Tensor own = x.detach().contiguous();
  return tp.sequence ? comm::all_gather(own, 0, tp.group) : own;
}

int64_t logits_bytes_on_cpu() {
  return int64_t{128} << 20;
}
int64_t logits_bytes_on_gpu(int64_t memory) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return memory > 0 ? std::min(kMost, memory / 64) : kMost;
}

VocabShare vocab_share(const nn::Param& table) {
  const std::vector<nn::LocalBox> boxes = nn::local_boxes(table.spec(), table.where());
  VocabShare share{.padded = table.shape()[0]};
  if (!boxes.empty()) {
    share.offset = boxes[0].global[0];
    if (share.offset > 0 && planted("vocabulary_offset_off_by_one")) --share.offset;
    share.real = boxes[0].size[0];
  } else {
    share.offset = table.spec().shape[0];
  }
  return share;
}

VocabParallelEmbedding::VocabParallelEmbedding(nn::Param& table, nn::Param* positions,
                                               TensorParallel tp, VocabAdapters adapters)
    : table_(&table), positions_(positions), tp_(std::move(tp)), adapters_(std::move(adapters)) {}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids,
                                           const nn::ForwardContext& ctx) const {
  const VocabShare share = vocab_share(*table_);
  const auto adapted = [&](const at::Tensor& rows) {
    const at::Tensor sum = adapters_.adapter == nullptr
                               ? rows
                               : adapters_.adapter->add_rows(rows, ids, share.offset, ctx);
    adapters_.add_variants_to_rows(sum, ids, share.offset, ctx);
    return sum;
  };
  if (tp_.size() == 1) return adapted(nn::embedding(ids, *table_, positions_, share.offset, ctx));
  // The positions must be added once, so after the sum over ranks.
  const at::Tensor words = adapted(
      nn::embedding(ids, *table_, planted("positions_added_by_every_rank") ? positions_ : nullptr,
                    share.offset, ctx));
  const at::Tensor sum = tp_.sequence ? comm::reduce_scatter(words, 0, tp_.group)
                                      : comm::reduce_from(words, tp_.group);
  if (positions_ == nullptr) return sum;
  const at::Tensor places = ctx.layout->outer(ctx.layout->positions).to(at::kLong);
  return sum + nn::embedding(places, *positions_, nullptr, 0, ctx);
}

VocabHead::VocabHead(nn::Param& weight, nn::Param* bias, TensorParallel tp, double cap,
                     VocabAdapters adapters)
    : weight_(&weight), bias_(bias), tp_(std::move(tp)), cap_(cap), adapters_(std::move(adapters)) {
  weight.multiplies = nn::ProductRows::kLogits;
}

at::Tensor VocabHead::loss(const at::Tensor& h, std::string_view field, std::string_view term,
                           const nn::ForwardContext& ctx) const {
  const at::Tensor& labels = ctx.batch->field(field);
  const auto known = ctx.batch->labelled_rows.find(field);
  if (known == ctx.batch->labelled_rows.end()) return loss(h, labels, term, ctx);
  return loss_of_rows(h, labels, known->second, term, ctx);
}

at::Tensor VocabHead::loss(const at::Tensor& h, const at::Tensor& labels, std::string_view term,
                           const nn::ForwardContext& ctx) const {
  const at::Tensor rows = nn::rows_where(labels >= 0);
  return loss_of_rows(h, labels, leaves_out(rows.size(0), labels.numel()) ? rows : at::Tensor(),
                      term, ctx);
}

at::Tensor VocabHead::loss_of_rows(const at::Tensor& h, const at::Tensor& labels,
                                   const at::Tensor& rows, std::string_view term,
                                   const nn::ForwardContext& ctx) const {
  ctx.use(weight_);
  ctx.use(bias_);
  const VocabAdapter* const adapter = adapters_.adapter.get();
  if (adapter != nullptr) adapter->use(ctx);
  LossPass pass{.h = {},
                .labels = labels,
                .dh = {},
                .losses = {},
                .share = vocab_share(*weight_),
                .weight = weight_,
                .bias = bias_,
                .adapter = nullptr,
                .tp = tp_.group,
                .scale = ctx.loss_scale(term),
                .cap = cap_,
                .with_gradient = nn::grad_enabled(),
                .count_hits = ctx.wanted.scores};
  at::Tensor loss, dh;
  {
    const nn::NoAutograd guard;
    const at::Tensor all = gathered_tokens(h, tp_);
    PT_DCHECK(labels.numel() == all.size(0));
    pass.h = rows.defined() ? all.index_select(0, rows) : all;
    if (rows.defined()) pass.labels = labels.index_select(0, rows);
    pass.losses = at::empty({pass.h.size(0)}, h.options().dtype(nn::acc_dtype(h.scalar_type())));
    if (pass.with_gradient) pass.dh = at::empty_like(pass.h);
    std::optional<VocabAdapter::Pass> adapting = adapter_pass(rows, ctx, pass.with_gradient);
    if (adapting) pass.adapter = &*adapting;
    run_chunks(pass);
    if (pass.with_gradient) {
      dh = rows.defined() ? at::zeros_like(all).index_copy_(0, rows, pass.dh) : pass.dh;
      if (tp_.sequence) {
        dh = comm::reduce_scatter(dh, 0, tp_.group);
      } else if (!planted("loss_gradient_not_summed")) {
        comm::all_reduce_(dh, comm::ReduceOp::kSum, tp_.group);
      }
    }
    // In double: the mean over a step is of many tokens, and the reported figure is exact.
    const at::Tensor sum = pass.losses.sum(at::kDouble);
    ctx.add_loss(term, sum);
    if (pass.hits.defined()) ctx.add_hits(term, pass.hits);
    loss = (sum * pass.scale).to(pass.losses.scalar_type());
  }
  if (pass.with_gradient) {
    if (weight_->trainable) weight_->accumulated();
    if (bias_ != nullptr && bias_->trainable) bias_->accumulated();
    if (adapter != nullptr) adapter->used();
  }
  nn::record("vocab_loss", {h}, {loss}, {dh},
             [](auto&&, nn::Saved& saved) { return std::vector<at::Tensor>{saved.take(0)}; });
  return loss;
}

at::Tensor VocabHead::logits(const at::Tensor& h, const at::Tensor& rows,
                             const nn::ForwardContext& ctx) const {
  const nn::NoAutograd guard;
  const at::Tensor all = gathered_tokens(h, tp_);
  std::optional<VocabAdapter::Pass> adapting = adapter_pass(rows, ctx, false);
  return whole_logits(rows.defined() ? all.index_select(0, rows) : all, rows, adapting, 0, ctx);
}

void VocabHead::score_tokens(const at::Tensor& h, const nn::ForwardContext& ctx) const {
  const nn::NoAutograd guard;
  const at::Tensor& labels = ctx.wanted.scored_labels;
  const at::Tensor& rows = ctx.wanted.scored_rows;
  const at::Tensor all = gathered_tokens(h, tp_).index_select(0, rows);
  const auto acc = h.options().dtype(nn::acc_dtype(h.scalar_type()));
  const int64_t row_bytes = weight_->spec().shape[0] * static_cast<int64_t>(acc.dtype().itemsize());
  const int64_t chunk = std::max<int64_t>(1, chunk_bytes(h) / row_bytes);
  const at::Tensor log_probs = at::empty({labels.numel()}, acc);
  const at::Tensor hits = at::empty({labels.numel()}, h.options().dtype(at::kBool));
  std::optional<VocabAdapter::Pass> adapting = adapter_pass(rows, ctx, false);
  for (int64_t begin = 0; begin < labels.numel(); begin += chunk) {
    const int64_t count = std::min(chunk, labels.numel() - begin);
    const at::Tensor label = labels.narrow(0, begin, count);
    const at::Tensor logits = whole_logits(all.narrow(0, begin, count),
                                           rows.narrow(0, begin, count), adapting, begin, ctx);
    hits.narrow(0, begin, count).copy_(logits.argmax(1) == label);
    log_probs.narrow(0, begin, count)
        .copy_(at::log_softmax(logits, 1).gather(1, label.unsqueeze(1)).squeeze(1));
  }
  ctx.deposit(nn::kTokenLogProbs, log_probs);
  ctx.deposit(nn::kTokenHits, hits);
}

std::optional<VocabAdapter::Pass> VocabHead::adapter_pass(const at::Tensor& rows,
                                                          const nn::ForwardContext& ctx,
                                                          bool with_gradient) const {
  if (adapters_.adapter == nullptr) return std::nullopt;
  return VocabAdapter::Pass(*adapters_.adapter, *weight_, rows, ctx, with_gradient);
}

at::Tensor VocabHead::whole_logits(const at::Tensor& h, const at::Tensor& rows,
                                   std::optional<VocabAdapter::Pass>& adapting, int64_t begin,
                                   const nn::ForwardContext& ctx) const {
  const VocabShare share = vocab_share(*weight_);
  const at::Tensor local =
      at::empty({h.size(0), share.padded}, h.options().dtype(nn::acc_dtype(h.scalar_type())));
  nn::matmul_nt_acc(local, h, weight_->value());
  if (adapting) adapting->add(local, h, begin);
  adapters_.add_variants(local, h, rows, ctx);
  if (bias_ != nullptr) local.add_(bias_->value());
  cap_logits(local, cap_);
  return comm::all_gather(local, 1, tp_.group).narrow(1, 0, weight_->spec().shape[0]);
}

} // namespace pentatron::parallel

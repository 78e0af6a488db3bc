#include "pentatron/layers/varlen_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/layer_graphs.h"

namespace pentatron::layers::detail {

namespace {

/// Query i sees keys i - offset + [low, high].
struct Band {
  int64_t low, high;
};

constexpr int64_t kFar = int64_t{1} << 40;

Band band_of(const CoreAttentionOptions& o) {
  Band band{-kFar, o.mask == AttentionMask::kCausal ? 0 : kFar};
  if (o.window > 0) {
    band.low = 1 - o.window;
    band.high = std::min(band.high, o.window - 1);
  }
  return band;
}

/// Without queries that see nothing and keys that nobody sees; with size 0 if that is all.
AttentionPair cut(AttentionPair p, const Band& band) {
  const auto drop_queries = [&](int64_t first, int64_t end) {
    first = std::clamp<int64_t>(first, 0, p.query_size);
    p.query_begin += first;
    p.offset -= first;
    p.query_size = std::clamp<int64_t>(end, first, p.query_size) - first;
  };
  const auto drop_keys = [&](int64_t first, int64_t end) {
    first = std::clamp<int64_t>(first, 0, p.key_size);
    p.key_begin += first;
    p.key_position += first;
    p.offset += first;
    p.key_size = std::clamp<int64_t>(end, first, p.key_size) - first;
  };
  drop_queries(p.offset - band.high, p.offset + p.key_size - band.low);
  drop_keys(band.low - p.offset, p.query_size - p.offset + band.high);
  return p;
}

/// A limit of a pair counted from the end, and whether it hides a key.
struct Limit {
  int64_t distance;
  bool hides;
};
struct Limits {
  Limit left, right;
};
Limits limits_of(const AttentionPair& p, const Band& band) {
  const int64_t shift = p.key_size - p.query_size + p.offset;
  // The first query has the nearest limit on the right, the last one on the left.
  return {{shift - band.low, p.query_size - 1 - p.offset + band.low > 0},
          {band.high - shift, band.high - p.offset < p.key_size - 1}};
}

/// kAll for distances that hide no key of any pair. Others stay also for pairs that they hide
/// nothing of, such as documents of one token, so that these share the call of the rest.
std::map<int64_t, int64_t> shared_limits(const std::vector<Limits>& all, Limit Limits::*side) {
  std::map<int64_t, int64_t> result;
  for (const Limits& limits : all) {
    const Limit& limit = limits.*side;
    int64_t& shared = result.try_emplace(limit.distance, VarlenCall::kAll).first->second;
    if (limit.hides) shared = limit.distance;
  }
  return result;
}

void add(VarlenRows& to, int64_t begin, int64_t size) {
  to.ends.push_back(static_cast<int32_t>(to.ends.back() + size));
  to.longest = std::max(to.longest, size);
  for (int64_t i = 0; i < size; ++i) to.rows.push_back(begin + i);
}

/// Rows that are neighbours need no list.
void simplify(VarlenRows& rows) {
  rows.begin = rows.rows.front();
  if (std::ranges::adjacent_find(rows.rows, [](int64_t a, int64_t b) { return b != a + 1; }) ==
      rows.rows.end())
    rows.rows.clear();
}

/// Cumulative sizes on the device. Calls of all layers of a microbatch have the same ones, and a
/// copy from the host would make the host wait: the last few are kept.
at::Tensor ends_on(const std::vector<int32_t>& ends, const at::Tensor& like) {
  struct Kept {
    std::vector<int32_t> ends;
    at::Device device;
    at::Tensor tensor;
  };
  constexpr size_t kKept = 8;
  thread_local std::vector<Kept> kept;
  const auto found = std::ranges::find_if(
      kept, [&](const Kept& one) { return one.device == like.device() && one.ends == ends; });
  if (found != kept.end()) {
    std::rotate(found, found + 1, kept.end()); // the last one used is given up last
  } else {
    if (kept.size() == kKept) kept.erase(kept.begin());
    kept.push_back({ends, like.device(), nn::to_device(at::tensor(ends, at::kInt), like.device())});
  }
  nn::keep_for_graph(kept.back().tensor);
  return kept.back().tensor;
}

/// Whether every head of every row lies at a multiple of 16 bytes, as the kernels load them.
bool aligned(const at::Tensor& x) {
  constexpr int64_t kBytes = 16;
  const auto divides = [&](int64_t elements) { return elements * x.itemsize() % kBytes == 0; };
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kBytes == 0 && x.stride(2) == 1 &&
         divides(x.stride(0)) && divides(x.stride(1));
}

/// Between a tensor and the rows of a call, side by side and with heads of the kernel's size.
class RowAccess {
 public:
  RowAccess(const VarlenRows& rows, const at::Tensor& like, int64_t head_size)
      : rows_(rows), head_size_(head_size) {
    if (!rows.rows.empty()) index_ = nn::to_device(at::tensor(rows.rows, at::kLong), like.device());
  }
  at::Tensor take(const at::Tensor& x) const {
    const at::Tensor part =
        index_.defined() ? x.index_select(0, index_) : x.narrow(0, rows_.begin, rows_.size());
    const int64_t missing = head_size_ - x.size(2);
    if (missing > 0) return at::constant_pad_nd(part, {0, missing}, 0);
    return aligned(part) ? part : part.clone(at::MemoryFormat::Contiguous);
  }
  /// `part` takes the place of `x` if it has all of its rows, which saves a pass over both.
  void give(const at::Tensor& part, at::Tensor& x) const {
    if (!index_.defined() && part.sizes() == x.sizes() && part.is_contiguous() &&
        part.scalar_type() == x.scalar_type()) {
      x = part;
      return;
    }
    const at::Tensor real = part.narrow(2, 0, x.size(2));
    if (index_.defined())
      x.index_copy_(0, index_, real.to(x.scalar_type()));
    else
      x.narrow(0, rows_.begin, rows_.size()).copy_(real);
  }
  /// Of lse, [n, T].
  at::Tensor take_columns(const at::Tensor& x) const {
    return index_.defined() ? x.index_select(1, index_)
                            : x.narrow(1, rows_.begin, rows_.size()).contiguous();
  }
  void give_columns(const at::Tensor& part, at::Tensor& x) const {
    if (!index_.defined() && part.sizes() == x.sizes() && part.is_contiguous() &&
        part.scalar_type() == x.scalar_type())
      x = part;
    else if (index_.defined())
      x.index_copy_(1, index_, part.to(x.scalar_type()));
    else
      x.narrow(1, rows_.begin, rows_.size()).copy_(part);
  }

 private:
  const VarlenRows& rows_;
  int64_t head_size_;
  at::Tensor index_;
};

int64_t head_size(const AttentionInputs& in, const VarlenKernel& kernel) {
  return kernel.padded_head(std::max(in.q.size(2), in.v.size(2)));
}

VarlenOperands operands(const AttentionInputs& in, const VarlenCall& call, const RowAccess& queries,
                        const RowAccess& keys) {
  return {.q = queries.take(in.q),
          .k = keys.take(in.k),
          .v = keys.take(in.v),
          .q_ends = ends_on(call.queries.ends, in.q),
          .k_ends = ends_on(call.keys.ends, in.q),
          .call = &call,
          .scale = in.options.scale};
}

/// The inputs with pairs cut, so that what they leave out is there already.
AttentionInputs with_pairs(const AttentionInputs& in, const VarlenPlan& plan) {
  AttentionInputs cut = in;
  cut.pairs = plan.pairs;
  return cut;
}

/// Adds the sinks of queries in pairs to a result without them.
void add_sinks(const AttentionInputs& in, const AttentionResult& result) {
  const at::Tensor sinks = sink_logits(in.q, in.options);
  if (!sinks.defined()) return;
  for (const AttentionPair& pair : in.pairs) {
    const at::Tensor out = result.out.narrow(0, pair.query_begin, pair.query_size),
                     lse = result.lse.narrow(1, pair.query_begin, pair.query_size);
    const at::Tensor both = at::logaddexp(lse, sinks);
    out.copy_(out.to(both.scalar_type()).mul_((lse - both).exp_().t().unsqueeze(2)));
    lse.copy_(both);
  }
}

/// Of sinks [n, 1]: every query of a pair has the share exp(sink - lse), with no value behind it.
void sum_sinks(const AttentionInputs& in, const AttentionResult& saved, const at::Tensor& dout,
               const at::Tensor& dsinks) {
  if (!dsinks.defined()) return;
  const at::Tensor sinks = sink_logits(in.q, in.options);
  const auto acc = saved.lse.scalar_type();
  for (const AttentionPair& pair : in.pairs) {
    const auto rows = [&](const at::Tensor& x) {
      return x.narrow(0, pair.query_begin, pair.query_size).to(acc);
    };
    const at::Tensor delta = (rows(dout) * rows(saved.out)).sum(2).t(), // [n, queries]
        share = at::exp(sinks - saved.lse.narrow(1, pair.query_begin, pair.query_size));
    dsinks.sub_((share * delta).sum(1));
  }
}

} // namespace

std::optional<VarlenPlan> plan_varlen(const AttentionInputs& in) {
  if (in.options.mask == AttentionMask::kPrefix) return std::nullopt;
  const Band band = band_of(in.options);
  VarlenPlan plan{.training = in.training};
  std::map<std::pair<int64_t, int64_t>, size_t> call_of; // by limits
  std::vector<AttentionPair> pairs = in.pairs;
  std::ranges::sort(pairs, {}, &AttentionPair::query_begin);
  std::vector<Limits> limits;
  for (const AttentionPair& whole : pairs) {
    const AttentionPair pair = cut(whole, band);
    if (pair.query_size == 0 || pair.key_size == 0) continue;
    plan.pairs.push_back(pair);
    limits.push_back(limits_of(pair, band));
  }
  const auto left = shared_limits(limits, &Limits::left),
             right = shared_limits(limits, &Limits::right);
  for (size_t i = 0; i < limits.size(); ++i) {
    const AttentionPair& pair = plan.pairs[i];
    const std::pair<int64_t, int64_t> both{left.at(limits[i].left.distance),
                                           right.at(limits[i].right.distance)};
    const auto [slot, fresh] = call_of.try_emplace(both, plan.calls.size());
    if (fresh) {
      plan.calls.emplace_back();
      plan.calls.back().left = both.first;
      plan.calls.back().right = both.second;
    }
    VarlenCall& call = plan.calls[slot->second];
    add(call.queries, pair.query_begin, pair.query_size);
    add(call.keys, pair.key_begin, pair.key_size);
  }
  for (VarlenCall& call : plan.calls) {
    simplify(call.queries);
    simplify(call.keys);
  }
  return plan;
}

bool equal_lengths(const VarlenCall& call) {
  const std::vector<int32_t>&q = call.queries.ends, &k = call.keys.ends;
  for (size_t i = 1; i < q.size(); ++i)
    if (q[i] - q[i - 1] != q[1] || k[i] - k[i - 1] != q[1]) return false;
  return true;
}

bool varlen_accepts(const AttentionInputs& in, const VarlenKernel& kernel) {
  if (in.options.cap != 0 || in.bias.defined() || in.row_ids.defined()) return false;
  const std::optional<VarlenPlan> plan = plan_varlen(in);
  return plan && kernel.takes(*plan, in.q.scalar_type(), head_size(in, kernel));
}

AttentionResult varlen_forward(const AttentionInputs& in, const VarlenKernel& kernel) {
  const VarlenPlan plan = *plan_varlen(in);
  AttentionResult result = make_result(with_pairs(in, plan));
  for (const VarlenCall& call : plan.calls) {
    const int64_t d = head_size(in, kernel);
    const RowAccess queries(call.queries, in.q, d), keys(call.keys, in.q, d);
    const AttentionResult part = kernel.forward(operands(in, call, queries, keys));
    queries.give(part.out, result.out);
    queries.give_columns(part.lse, result.lse);
  }
  add_sinks(in, result);
  return result;
}

AttentionGradients varlen_backward(const AttentionInputs& in, const AttentionResult& saved,
                                   const OutputGradients& d, const VarlenKernel& kernel) {
  const VarlenPlan plan = *plan_varlen(in);
  AttentionGradients grads = make_gradients(with_pairs(in, plan));
  for (const VarlenCall& call : plan.calls) {
    const int64_t size = head_size(in, kernel);
    const RowAccess queries(call.queries, in.q, size), keys(call.keys, in.q, size);
    const AttentionGradients part = kernel.backward(
        operands(in, call, queries, keys),
        {queries.take(saved.out), queries.take_columns(saved.lse)}, queries.take(d.out));
    queries.give(part.dq, grads.dq);
    keys.give(part.dk, grads.dk);
    keys.give(part.dv, grads.dv);
  }
  sum_sinks(in, saved, d.out, grads.dsinks);
  return grads;
}

} // namespace pentatron::layers::detail

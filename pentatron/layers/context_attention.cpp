#include "pentatron/layers/context_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/layers/core_attention_detail.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/context/exchange.h"
#include "pentatron/parallel/context/zigzag.h"

namespace pentatron::layers {

namespace {

using Chunks = std::vector<nn::SampleChunk>;

/// Queries of one chunk and keys of another, as rows of the tensors at hand.
struct Block {
  int64_t query = 0, queries = 0, key = 0, keys = 0;
  std::vector<AttentionPair> pairs;
};

/// Where each chunk begins in the whole samples, and among its rank's rows.
struct Place {
  nn::TokenRange whole;
  int64_t row = 0;
};
std::vector<Place> places_of(const nn::SequenceLayout& whole, const Chunks& chunks) {
  std::vector<Place> places;
  int64_t row = 0;
  for (const nn::SampleChunk& chunk : chunks) {
    const int64_t begin = whole.sample_starts[static_cast<size_t>(chunk.sample)] + chunk.begin;
    places.push_back({{begin, begin + chunk.size}, row});
    row += chunk.size;
  }
  return places;
}

nn::TokenRange common(const nn::TokenRange& a, int64_t begin, int64_t size) {
  return {std::max(a.begin, begin), std::min(a.end, begin + size)};
}

/// What of `documents`, pairs of the whole samples, lies in both chunks.
Block block_of(const Place& queries, const Place& keys, const std::vector<AttentionPair>& documents,
               const CoreAttentionOptions& o) {
  Block block{.query = queries.row,
              .queries = queries.whole.end - queries.whole.begin,
              .key = keys.row,
              .keys = keys.whole.end - keys.whole.begin,
              .pairs = {}};
  for (const AttentionPair& d : documents) {
    if (d.query_begin >= queries.whole.end) break; // ascending
    const nn::TokenRange q = common(queries.whole, d.query_begin, d.query_size),
                         k = common(keys.whole, d.key_begin, d.key_size);
    if (q.begin >= q.end || k.begin >= k.end) continue;
    if (o.mask == AttentionMask::kCausal && k.begin >= q.end) continue;
    if (o.window > 0 && (q.begin - k.end + 1 >= o.window || k.begin - q.end + 1 >= o.window))
      continue;
    block.pairs.push_back({.query_begin = q.begin - queries.whole.begin,
                           .query_size = q.end - q.begin,
                           .key_begin = k.begin - keys.whole.begin,
                           .key_size = k.end - k.begin,
                           .offset = k.begin - q.begin,
                           .key_position = d.key_position + k.begin - d.key_begin});
  }
  return block;
}

/// What forward and backward of a call have in common.
struct Call {
  std::shared_ptr<const nn::SequenceLayout> whole;
  parallel::ContextWay way;
  CoreAttentionOptions options;
  uint64_t seed = 0;
  bool drops = false;
  int64_t first_head = 0, heads = 0; ///< of this rank's query heads, those that it attends for

  int64_t all_heads() const { return heads * way.heads.size(); }
  /// [heads, 1], or undefined.
  at::Tensor sinks(const at::Tensor& q) const {
    const at::Tensor all = detail::sink_logits(q, options);
    return options.softmax == SoftmaxKind::kLearnable ? all.narrow(0, first_head, heads) : all;
  }
};

/// Attention of a rank that has the queries of chunks, to keys that come in several parts.
class Blockwise {
 public:
  explicit Blockwise(const Call& call)
      : whole_(*call.whole), group_(call.way.blocks), ring_(call.way.ring && group_.size() > 1),
        split_(parallel::zigzag_split(whole_, group_.size())), options_(call.options),
        documents_(whole_.self_attention()), seed_(call.seed) {
    options_.softmax = SoftmaxKind::kVanilla;
    options_.sinks = nullptr;
    own_ = split_.chunks[static_cast<size_t>(group_.rank())];
    for (int64_t sample = 0; sample < whole_.batch; ++sample) {
      const auto i = static_cast<size_t>(sample);
      all_.push_back({sample, 0, whole_.sample_starts[i + 1] - whole_.sample_starts[i]});
    }
    if (call.drops) row_ids_ = parallel::rows_of_chunks(whole_.row_ids, whole_, own_);
  }
  const Chunks& own() const { return own_; }

  /// Without sinks.
  detail::AttentionResult forward(const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v) const {
    const auto acc = q.options().dtype(nn::acc_dtype(q.scalar_type()));
    Sum sum{.out = at::zeros({q.size(0), q.size(1), v.size(2)}, acc),
            .lse = at::full({q.size(1), q.size(0)}, kNone, acc)};
    each_part(k, v, [&](const at::Tensor& kv, const Chunks& chunks) {
      for (const Block& block : blocks(chunks)) {
        const detail::AttentionResult part = detail::attention_forward(inputs(block, q, kv, k));
        sum.add(block, part);
      }
    });
    return {std::move(sum.out), std::move(sum.lse)};
  }

  /// `saved`: of all keys, and sinks.
  detail::AttentionGradients backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const detail::AttentionResult& saved,
                                      const at::Tensor& dout) const {
    const auto acc = q.options().dtype(nn::acc_dtype(q.scalar_type()));
    const at::Tensor dq = at::zeros(q.sizes(), acc);
    const auto add = [&](const at::Tensor& kv, const Chunks& chunks, const at::Tensor& dkv) {
      for (const Block& block : blocks(chunks)) {
        const detail::AttentionGradients part = detail::attention_backward(
            inputs(block, q, kv, k),
            {saved.out.narrow(0, block.query, block.queries),
             saved.lse.narrow(1, block.query, block.queries).contiguous()},
            {.out = dout.narrow(0, block.query, block.queries)});
        dq.narrow(0, block.query, block.queries).add_(part.dq);
        const at::Tensor rows = dkv.narrow(0, block.key, block.keys);
        rows.narrow(2, 0, k.size(2)).add_(part.dk);
        rows.narrow(2, k.size(2), v.size(2)).add_(part.dv);
      }
    };
    const at::Tensor dkv =
        ring_ ? ring_gradients(packed(k, v), acc, add) : gathered_gradients(packed(k, v), acc, add);
    return {dq.to(q.scalar_type()),
            dkv.narrow(2, 0, k.size(2)).to(k.scalar_type()),
            dkv.narrow(2, k.size(2), v.size(2)).to(v.scalar_type()),
            {},
            {}};
  }

 private:
  static constexpr double kNone = -std::numeric_limits<double>::infinity();

  /// Results of blocks of keys, as that of all of them.
  struct Sum {
    at::Tensor out, lse;

    void add(const Block& block, const detail::AttentionResult& part) const {
      const at::Tensor o = out.narrow(0, block.query, block.queries),
                       l = lse.narrow(1, block.query, block.queries);
      const at::Tensor both = at::logaddexp(l, part.lse), of = both.masked_fill(both == kNone, 0);
      const auto weight = [&](const at::Tensor& x) {
        return (x - of).exp_().t().unsqueeze(2); // [queries, n, 1]
      };
      if (!planted("blocks_merged_without_correction")) o.mul_(weight(l));
      o.addcmul_(part.out.to(o.scalar_type()), weight(part.lse));
      l.copy_(both);
    }
  };

  static at::Tensor packed(const at::Tensor& k, const at::Tensor& v) { return at::cat({k, v}, 2); }

  /// Blocks with keys of these chunks.
  std::vector<Block> blocks(const Chunks& keys) const {
    if (group_.size() == 1) {
      const int64_t rows = whole_.tokens();
      return {{.query = 0, .queries = rows, .key = 0, .keys = rows, .pairs = documents_}};
    }
    const std::vector<Place> queries = places_of(whole_, own_), sources = places_of(whole_, keys);
    std::vector<Block> result;
    for (size_t i = 0; i < own_.size(); ++i) {
      for (size_t j = 0; j < keys.size(); ++j) {
        if (own_[i].sample != keys[j].sample) continue;
        Block block = block_of(queries[i], sources[j], documents_, options_);
        if (!block.pairs.empty()) result.push_back(std::move(block));
      }
    }
    return result;
  }

  detail::AttentionInputs inputs(const Block& block, const at::Tensor& q, const at::Tensor& kv,
                                 const at::Tensor& k) const {
    const at::Tensor rows = kv.narrow(0, block.key, block.keys);
    detail::AttentionInputs in{.q = q.narrow(0, block.query, block.queries),
                               .k = rows.narrow(2, 0, k.size(2)),
                               .v = rows.narrow(2, k.size(2), rows.size(2) - k.size(2)),
                               .bias = {},
                               .pairs = block.pairs,
                               .sequence = whole_.sequence,
                               .options = options_,
                               .row_ids = {},
                               .seed = seed_};
    if (row_ids_.defined()) in.row_ids = row_ids_.narrow(0, block.query, block.queries);
    return in;
  }

  /// Calls use(keys and values, their chunks) for all parts.
  template <class Use> void each_part(const at::Tensor& k, const at::Tensor& v, Use use) const {
    at::Tensor here = packed(k, v);
    if (!ring_) {
      use(gathered(here), all_);
      return;
    }
    for (int hop = 0; hop < group_.size(); ++hop) {
      const int source = parallel::rank_before(group_, hop);
      parallel::Hop next = pass(here, hop);
      use(here, split_.chunks[static_cast<size_t>(source)]);
      if (hop + 1 < group_.size()) here = next.wait();
    }
  }

  /// Starts what brings the keys and values of the next step.
  parallel::Hop pass(const at::Tensor& here, int hop) const {
    if (hop + 1 == group_.size()) return {};
    return {here, rows_after(hop + 1), group_};
  }
  int64_t rows_after(int hops) const {
    return split_.rows[static_cast<size_t>(parallel::rank_before(group_, hops))];
  }
  at::Tensor gathered(const at::Tensor& kv) const {
    return group_.size() == 1 ? kv : parallel::gather_tokens(kv, split_, all_, group_);
  }

  template <class Add>
  at::Tensor gathered_gradients(const at::Tensor& kv, const at::TensorOptions& acc, Add add) const {
    const at::Tensor all = gathered(kv), sums = at::zeros(all.sizes(), acc);
    add(all, all_, sums);
    return group_.size() == 1 ? sums : parallel::sum_to_owners(sums, split_, all_, group_);
  }

  /// Sums follow their keys and values: each rank adds its part, and the last one hands them on to
  /// their owner.
  template <class Add>
  at::Tensor ring_gradients(const at::Tensor& kv, const at::TensorOptions& acc, Add add) const {
    at::Tensor here = kv;
    parallel::Hop sums;
    for (int hop = 0; hop < group_.size(); ++hop) {
      const int source = parallel::rank_before(group_, hop);
      parallel::Hop next = pass(here, hop);
      const at::Tensor part = at::zeros(here.sizes(), acc);
      add(here, split_.chunks[static_cast<size_t>(source)], part);
      if (hop > 0 && !planted("key_gradients_of_one_rank")) part.add_(sums.wait());
      sums = {part, rows_after(hop + 1), group_};
      if (hop + 1 < group_.size()) here = next.wait();
    }
    return sums.wait();
  }

  const nn::SequenceLayout& whole_;
  const comm::Group& group_;
  bool ring_;
  parallel::TokenSplit split_;
  CoreAttentionOptions options_;
  std::vector<AttentionPair> documents_;
  uint64_t seed_;
  Chunks own_, all_;
  at::Tensor row_ids_;
};

/// Heads for tokens and back, among neighbours.
class Heads {
 public:
  /// `target`: the chunks of Blockwise.
  Heads(const Call& call, const Chunks& target)
      : group_(call.way.heads),
        split_(parallel::zigzag_split(*call.whole, call.way.blocks.rank() * group_.size(),
                                      group_.size(), call.way.blocks.size() * group_.size())),
        target_(target) {}
  at::Tensor take(const at::Tensor& x) const {
    return group_.size() == 1 ? x : parallel::heads_for_tokens(x, split_, target_, group_);
  }
  at::Tensor give(const at::Tensor& x) const {
    return group_.size() == 1 ? x : parallel::tokens_for_heads(x, split_, target_, group_);
  }

 private:
  const comm::Group& group_;
  parallel::TokenSplit split_;
  const Chunks& target_;
};

void check_heads(const AttentionOperands& x, const comm::Group& group) {
  for (const auto& [what, tensor] : {std::pair{"query", &x.q}, {"key", &x.k}}) {
    if (tensor->size(1) % group.size() == 0) continue;
    raise<ShapeError>("{} {} heads cannot be dealt out evenly to {} context-parallel ranks",
                      tensor->size(1), what, group.size());
  }
}

/// Puts the sinks into a result without them.
void add_sinks(detail::AttentionResult& result, const at::Tensor& sinks) {
  if (!sinks.defined()) return;
  const at::Tensor both = at::logaddexp(result.lse, sinks);
  result.out.mul_((result.lse - both).exp_().t().unsqueeze(2));
  result.lse = both;
}

/// Of q, k and v, as autograd takes them.
std::vector<at::Tensor> gradients(const Call& call, nn::Saved& kept, const at::Tensor& dy) {
  const at::Tensor q = kept[0], k = kept[1], v = kept[2];
  const Blockwise blocks(call);
  const Heads heads(call, blocks.own());
  const auto by_heads = [&](const at::Tensor& y) {
    return heads.take(y.unflatten(1, {call.all_heads(), v.size(2)})).contiguous();
  };
  const detail::AttentionResult saved{by_heads(kept[3]), kept[4]};
  const at::Tensor dout = by_heads(dy);
  const detail::AttentionGradients g = blocks.backward(q, k, v, saved, dout);
  if (call.options.sinks != nullptr && call.options.sinks->trainable) {
    const auto acc = saved.lse.scalar_type();
    const at::Tensor delta = (dout.to(acc) * saved.out.to(acc)).sum(2).t(),
                     probs = at::exp(call.sinks(q) - saved.lse),
                     dsinks = at::zeros({call.all_heads()}, saved.lse.options());
    dsinks.narrow(0, call.first_head, call.heads).sub_((probs * delta).sum(1));
    call.options.sinks->accumulate(dsinks);
  }
  return {heads.give(g.dq), heads.give(g.dk), heads.give(g.dv)};
}

} // namespace

at::Tensor context_attention(const AttentionOperands& x, const CoreAttentionOptions& options,
                             const parallel::ContextWay& way, const nn::ForwardContext& ctx) {
  PT_DCHECK(ctx.layout->whole != nullptr && !x.bias.defined() &&
            options.mask != AttentionMask::kPrefix);
  check_heads(x, way.heads);
  ctx.use(options.sinks);
  Call call{.whole = ctx.layout->whole,
            .way = way,
            .options = options,
            .seed = ctx.seed,
            .drops = ctx.training && options.dropout > 0,
            .heads = x.q.size(1) / way.heads.size()};
  call.first_head = way.heads.rank() * call.heads;
  if (!planted("attention_dropout_by_exchanged_head")) call.options.head_offset += call.first_head;
  at::Tensor q, k, v, out, lse;
  {
    const nn::NoAutograd guard;
    const Blockwise blocks(call);
    const Heads heads(call, blocks.own());
    q = heads.take(x.q.detach());
    k = heads.take(x.k.detach());
    v = heads.take(x.v.detach());
    detail::AttentionResult result = blocks.forward(q, k, v);
    add_sinks(result, call.sinks(q));
    lse = std::move(result.lse);
    out = heads.give(result.out.to(q.scalar_type())).contiguous().flatten(1);
  }
  nn::record("context_attention", {x.q, x.k, x.v}, {out}, {q, k, v, out, lse},
             [call = std::move(call)](auto&& grads, nn::Saved& kept) {
               const nn::NoAutograd guard;
               return gradients(call, kept, grads[0]);
             });
  return out;
}

} // namespace pentatron::layers

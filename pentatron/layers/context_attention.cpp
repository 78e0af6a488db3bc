#include "pentatron/layers/context_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

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
  std::vector<AttentionPair> real_pairs = {}; ///< see AttentionInputs
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
  bool training = false;
  int64_t first_head = 0, heads = 0; ///< of this rank's query heads, those that it attends for
  int64_t key_size = 0, value_size = 0;
  at::Tensor max_logits = {};             ///< of `heads`, see AttentionInputs
  std::optional<LatentKeys> latents = {}; ///< that travel in the place of keys and values

  /// Keys and values, from what travels.
  at::Tensor made(const at::Tensor& travels) const {
    return latents ? latents->make(travels) : travels;
  }

  int64_t all_heads() const { return heads * way.heads.size(); }
  /// [heads, 1], or undefined.
  at::Tensor sinks(const at::Tensor& q) const {
    const at::Tensor all = detail::sink_logits(q, options);
    return options.softmax == SoftmaxKind::kLearnable ? all.narrow(0, first_head, heads) : all;
  }
};

/// Calls use(first row in x, first row in the part, rows) for the chunks of `part`, some of `all`.
template <class Use> void each_chunk(const Chunks& all, const Chunks& part, Use use) {
  int64_t row = 0, to = 0;
  size_t next = 0;
  for (const nn::SampleChunk& chunk : all) {
    if (next < part.size() && part[next].sample == chunk.sample &&
        part[next].begin == chunk.begin) {
      use(row, to, chunk.size);
      to += chunk.size;
      ++next;
    }
    row += chunk.size;
  }
}

/// Attention of a rank that has the queries of chunks, to keys that come in several parts: all at
/// once, round a ring, or under a window straight from the ranks whose keys it sees.
class Blockwise {
 public:
  explicit Blockwise(const Call& call)
      : call_(call), whole_(*call.whole), group_(call.way.blocks),
        ring_(call.way.ring && group_.size() > 1), late_(!call.way.overlap),
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
    if (call.max_logits.defined() && !whole_.real.empty())
      real_documents_ = whole_.with_real_queries(documents_);
    straight_ = ring_ && sees_few();
  }
  const Chunks& own() const { return own_; }

  /// Without sinks. `own`: what travels of this rank's keys and values.
  detail::AttentionResult forward(const at::Tensor& q, const at::Tensor& own) const {
    const auto acc = q.options().dtype(nn::acc_dtype(q.scalar_type()));
    Sum sum{.out = at::zeros({q.size(0), q.size(1), call_.value_size}, acc),
            .lse = at::full({q.size(1), q.size(0)}, kNone, acc)};
    each_part(own, [&](const at::Tensor& travels, const Chunks& chunks) {
      const at::Tensor kv = call_.made(travels);
      for (const Block& block : blocks(chunks)) {
        const detail::AttentionResult part = detail::attention_forward(inputs(block, q, kv));
        sum.add(block, part);
      }
    });
    return {std::move(sum.out), std::move(sum.lse)};
  }

  struct Gradients {
    at::Tensor dq, down; ///< of what travels
  };
  /// `saved`: of all keys, and sinks.
  Gradients backward(const at::Tensor& q, const at::Tensor& own,
                     const detail::AttentionResult& saved, const at::Tensor& dout) const {
    const auto acc = q.options().dtype(nn::acc_dtype(q.scalar_type()));
    const at::Tensor dq = at::zeros(q.sizes(), acc);
    const auto add = [&](const at::Tensor& travels, const Chunks& chunks, const at::Tensor& sums) {
      const at::Tensor kv = call_.made(travels),
                       dkv = call_.latents ? at::zeros(kv.sizes(), acc) : sums;
      for (const Block& block : blocks(chunks)) {
        const detail::AttentionGradients part = detail::attention_backward(
            inputs(block, q, kv),
            {saved.out.narrow(0, block.query, block.queries),
             saved.lse.narrow(1, block.query, block.queries).contiguous()},
            {.out = dout.narrow(0, block.query, block.queries)});
        dq.narrow(0, block.query, block.queries).add_(part.dq);
        const at::Tensor rows = dkv.narrow(0, block.key, block.keys);
        rows.narrow(2, 0, call_.key_size).add_(part.dk);
        rows.narrow(2, call_.key_size, call_.value_size).add_(part.dv);
      }
      if (call_.latents) sums.add_(call_.latents->gradient(dkv, travels));
    };
    const at::Tensor down = straight_ ? straight_gradients(own, acc, add)
                            : ring_   ? ring_gradients(own, acc, add)
                                      : gathered_gradients(own, acc, add);
    if (call_.latents && call_.latents->weight->trainable) call_.latents->weight->accumulated();
    return {dq.to(q.scalar_type()), down};
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

  /// Blocks with keys of these chunks.
  std::vector<Block> blocks(const Chunks& keys) const {
    if (group_.size() == 1) {
      const int64_t rows = whole_.tokens();
      return {{.query = 0,
               .queries = rows,
               .key = 0,
               .keys = rows,
               .pairs = documents_,
               .real_pairs = real_documents_}};
    }
    const std::vector<Place> queries = places_of(whole_, own_), sources = places_of(whole_, keys);
    std::vector<Block> result;
    for (size_t i = 0; i < own_.size(); ++i) {
      for (size_t j = 0; j < keys.size(); ++j) {
        if (own_[i].sample != keys[j].sample) continue;
        Block block = block_of(queries[i], sources[j], documents_, options_);
        if (block.pairs.empty()) continue;
        if (!real_documents_.empty())
          block.real_pairs = block_of(queries[i], sources[j], real_documents_, options_).pairs;
        result.push_back(std::move(block));
      }
    }
    return result;
  }

  detail::AttentionInputs inputs(const Block& block, const at::Tensor& q,
                                 const at::Tensor& kv) const {
    const at::Tensor rows = kv.narrow(0, block.key, block.keys);
    detail::AttentionInputs in{.q = q.narrow(0, block.query, block.queries),
                               .k = rows.narrow(2, 0, call_.key_size),
                               .v = rows.narrow(2, call_.key_size, call_.value_size),
                               .bias = {},
                               .pairs = block.pairs,
                               .sequence = whole_.sequence,
                               .options = options_,
                               .row_ids = {},
                               .seed = seed_};
    if (row_ids_.defined()) in.row_ids = row_ids_.narrow(0, block.query, block.queries);
    // A block of padding alone has no such pairs.
    if (real_documents_.empty() || !block.real_pairs.empty()) in.max_logits = call_.max_logits;
    in.real_pairs = block.real_pairs;
    in.training = call_.training;
    return in;
  }

  /// The chunks of `source` whose keys queries of `target` see, both ranks of the ring.
  Chunks seen(int target, int source) const {
    const Chunks &queries = split_.chunks[static_cast<size_t>(target)],
                 &keys = split_.chunks[static_cast<size_t>(source)];
    const std::vector<Place> to = places_of(whole_, queries), from = places_of(whole_, keys);
    Chunks result;
    for (size_t j = 0; j < keys.size(); ++j)
      for (size_t i = 0; i < queries.size(); ++i)
        if (queries[i].sample == keys[j].sample &&
            !block_of(to[i], from[j], documents_, options_).pairs.empty()) {
          result.push_back(keys[j]);
          break;
        }
    return result;
  }
  /// Whether the rows that ranks see of each other are at most half of what a ring passes on. A
  /// ring sends to neighbours alone, which suits networks of machines, so more has to be saved.
  bool sees_few() const {
    if (options_.window == 0) return false;
    int64_t rows = 0;
    for (int target = 0; target < group_.size(); ++target)
      for (int source = 0; source < group_.size(); ++source)
        if (source != target) rows += parallel::num_rows(seen(target, source));
    return 2 * rows <= (group_.size() - 1) * whole_.tokens();
  }
  int after(int distance) const { return (group_.rank() + distance) % group_.size(); }

  /// Starts what goes to the rank at this distance, and what comes from the one as far before.
  parallel::Hop straight(const at::Tensor& own, int distance) const {
    if (distance >= group_.size()) return {};
    const int to = after(distance), from = parallel::rank_before(group_, distance);
    const Chunks goes = seen(to, group_.rank());
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[0] = parallel::num_rows(goes);
    const at::Tensor part = at::empty(sizes, own.options());
    each_chunk(own_, goes, [&](int64_t row, int64_t at, int64_t n) {
      part.narrow(0, at, n).copy_(own.narrow(0, row, n));
    });
    return {part, to, parallel::num_rows(seen(group_.rank(), from)), from, group_, late_};
  }

  /// Each rank adds its part of another one's sums and sends it back.
  template <class Add>
  at::Tensor straight_gradients(const at::Tensor& own, const at::TensorOptions& acc,
                                Add add) const {
    const at::Tensor sums = at::zeros(own.sizes(), acc);
    parallel::Hop next = straight(own, 1);
    add(own, own_, sums);
    for (int distance = 1; distance < group_.size(); ++distance) {
      const at::Tensor here = next.wait();
      next = straight(own, distance + 1);
      const int owner = parallel::rank_before(group_, distance), other = after(distance);
      const at::Tensor part = at::zeros(here.sizes(), acc);
      if (here.size(0) > 0) add(here, seen(group_.rank(), owner), part);
      const Chunks mine = seen(other, group_.rank());
      const at::Tensor back =
          parallel::Hop(part, owner, parallel::num_rows(mine), other, group_).wait();
      if (planted("key_gradients_under_a_window_not_sent_back")) continue;
      each_chunk(own_, mine, [&](int64_t row, int64_t at, int64_t n) {
        sums.narrow(0, row, n).add_(back.narrow(0, at, n));
      });
    }
    return sums;
  }

  /// Calls use(what travels, its chunks) for all parts.
  template <class Use> void each_part(const at::Tensor& own, Use use) const {
    at::Tensor here = own;
    if (!ring_) {
      use(gathered(here), all_);
      return;
    }
    if (straight_) {
      parallel::Hop next = straight(own, 1);
      use(own, own_);
      for (int distance = 1; distance < group_.size(); ++distance) {
        here = next.wait();
        next = straight(own, distance + 1);
        if (here.size(0) > 0)
          use(here, seen(group_.rank(), parallel::rank_before(group_, distance)));
      }
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
    return {here, rows_after(hop + 1), group_, late_};
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
      sums = {part, rows_after(hop + 1), group_, late_};
      if (hop + 1 < group_.size()) here = next.wait();
    }
    return sums.wait();
  }

  const Call& call_;
  const nn::SequenceLayout& whole_;
  const comm::Group& group_;
  bool ring_, late_, straight_ = false;
  parallel::TokenSplit split_;
  CoreAttentionOptions options_;
  std::vector<AttentionPair> documents_, real_documents_;
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

/// The gradients of q and of what travels, and that of sinks.
Blockwise::Gradients gradients(const Call& call, const Blockwise& blocks, const Heads& heads,
                               const at::Tensor& q, const at::Tensor& travels,
                               const at::Tensor& out, const at::Tensor& lse, const at::Tensor& dy) {
  const auto by_heads = [&](const at::Tensor& y) {
    return heads.take(y.unflatten(1, {call.all_heads(), call.value_size})).contiguous();
  };
  const detail::AttentionResult saved{by_heads(out), lse};
  const at::Tensor dout = by_heads(dy);
  Blockwise::Gradients g = blocks.backward(q, travels, saved, dout);
  if (call.options.sinks != nullptr && call.options.sinks->trainable) {
    const auto acc = saved.lse.scalar_type();
    const at::Tensor delta = (dout.to(acc) * saved.out.to(acc)).sum(2).t(),
                     probs = at::exp(call.sinks(q) - saved.lse),
                     dsinks = at::zeros({call.all_heads()}, saved.lse.options());
    dsinks.narrow(0, call.first_head, call.heads).sub_((probs * delta).sum(1));
    call.options.sinks->accumulate(dsinks);
  }
  return g;
}

Call call_of(const at::Tensor& q, const CoreAttentionOptions& options,
             const parallel::ContextWay& way, const nn::ForwardContext& ctx) {
  PT_DCHECK(ctx.layout->whole != nullptr && options.mask != AttentionMask::kPrefix);
  ctx.use(options.sinks);
  Call call{.whole = ctx.layout->whole,
            .way = way,
            .options = options,
            .seed = ctx.seed,
            .drops = ctx.training && options.dropout > 0,
            .training = ctx.training,
            .heads = q.size(1) / way.heads.size()};
  call.first_head = way.heads.rank() * call.heads;
  const at::Tensor most =
      ctx.max_logits(options.name, q.size(1), q.options().dtype(nn::acc_dtype(q.scalar_type())));
  if (most.defined()) call.max_logits = most.narrow(0, call.first_head, call.heads);
  if (!planted("attention_dropout_by_exchanged_head")) call.options.head_offset += call.first_head;
  return call;
}

/// -> out [T, n e] and log-sum-exp.
detail::AttentionResult attend(const Call& call, const Blockwise& blocks, const Heads& heads,
                               const at::Tensor& q, const at::Tensor& travels) {
  detail::AttentionResult result = blocks.forward(q, travels);
  add_sinks(result, call.sinks(q));
  result.out = heads.give(result.out.to(q.scalar_type())).contiguous().flatten(1);
  return result;
}

} // namespace

at::Tensor context_attention(const AttentionOperands& x, const CoreAttentionOptions& options,
                             const parallel::ContextWay& way, const nn::ForwardContext& ctx) {
  PT_DCHECK(!x.bias.defined());
  check_heads(x, way.heads);
  Call call = call_of(x.q, options, way, ctx);
  call.key_size = x.k.size(2);
  call.value_size = x.v.size(2);
  at::Tensor q, k, v;
  detail::AttentionResult result;
  {
    const nn::NoAutograd guard;
    const Blockwise blocks(call);
    const Heads heads(call, blocks.own());
    q = heads.take(x.q.detach());
    k = heads.take(x.k.detach());
    v = heads.take(x.v.detach());
    result = attend(call, blocks, heads, q, at::cat({k, v}, 2));
  }
  nn::record("context_attention", {x.q, x.k, x.v}, {result.out}, {q, k, v, result.out, result.lse},
             [call = std::move(call)](auto&& grads, nn::Saved& kept) {
               const nn::NoAutograd guard;
               const Blockwise blocks(call);
               const Heads heads(call, blocks.own());
               const auto g = gradients(call, blocks, heads, kept[0],
                                        at::cat({kept[1], kept[2]}, 2), kept[3], kept[4], grads[0]);
               const at::Tensor down = g.down.to(kept[1].scalar_type());
               return std::vector<at::Tensor>{
                   heads.give(g.dq), heads.give(down.narrow(2, 0, call.key_size)),
                   heads.give(down.narrow(2, call.key_size, call.value_size))};
             });
  return result.out;
}

bool latents_travel(const LatentKeys& keys, const parallel::ContextWay& way) {
  return way.heads.size() == 1 && way.blocks.size() > 1 && !keys.adapted &&
         keys.latent_numbers() < keys.key_numbers();
}

at::Tensor context_attention(const at::Tensor& q, const at::Tensor& latents, const LatentKeys& keys,
                             const CoreAttentionOptions& options, const parallel::ContextWay& way,
                             const nn::ForwardContext& ctx) {
  PT_DCHECK(latents_travel(keys, way));
  ctx.use(keys.weight);
  Call call = call_of(q, options, way, ctx);
  call.key_size = keys.key_size();
  call.value_size = keys.value_size();
  call.latents = keys;
  detail::AttentionResult result;
  {
    const nn::NoAutograd guard;
    const Blockwise blocks(call);
    result = attend(call, blocks, Heads(call, blocks.own()), q.detach(), latents.detach());
  }
  nn::record("context_attention", {q, latents}, {result.out}, {q, latents, result.out, result.lse},
             [call = std::move(call)](auto&& grads, nn::Saved& kept) {
               const nn::NoAutograd guard;
               const Blockwise blocks(call);
               const auto g = gradients(call, blocks, Heads(call, blocks.own()), kept[0], kept[1],
                                        kept[2], kept[3], grads[0]);
               return std::vector<at::Tensor>{g.dq, g.down.to(kept[1].scalar_type())};
             });
  return result.out;
}

} // namespace pentatron::layers

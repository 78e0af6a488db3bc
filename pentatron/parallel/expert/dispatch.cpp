#include "pentatron/parallel/expert/dispatch.h"

#include <ATen/ATen.h>

#include <numeric>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/record.h"
#include "pentatron/parallel/expert/order.h"

namespace pentatron::parallel {

namespace {

/// The rows of all ranks of the group, in order of ranks.
at::Tensor gathered(const at::Tensor& own, const comm::Group& group, nn::Turns* turns) {
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] *= group.size();
  at::Tensor all = at::empty(shape, own.options());
  comm::Work work = comm::all_gather_into(all, own, 0, group);
  wait_in_turn(work, turns, group);
  return all;
}

/// This rank's block of `tokens` rows.
struct Block {
  int64_t begin = 0, rows = 0, each = 0;
};
Block block_of(int64_t tokens, const TensorParallel& tp) {
  const int64_t each = (tokens + tp.size() - 1) / tp.size();
  const int64_t begin = std::min<int64_t>(tokens, tp.rank() * each);
  return {begin, std::min<int64_t>(each, tokens - begin), each};
}

at::Tensor cut(const at::Tensor& x, const Block& block) {
  return x.narrow(0, block.begin, block.rows).contiguous();
}

at::Tensor join(const at::Tensor& own, const Block& block, int64_t tokens,
                const TensorParallel& tp) {
  at::Tensor padded = own;
  if (block.rows < block.each) {
    padded = at::zeros({block.each, own.size(1)}, own.options());
    padded.narrow(0, 0, block.rows).copy_(own);
  }
  return comm::all_gather(padded.contiguous(), 0, tp.group).narrow(0, 0, tokens);
}

} // namespace

at::Tensor own_rows(const at::Tensor& x, const TensorParallel& tp) {
  if (tp.size() == 1 || tp.sequence) return x;
  const int64_t tokens = x.size(0);
  const Block block = block_of(tokens, tp);
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = cut(x.detach(), block);
  }
  nn::record("own_rows", {x}, {y}, {}, [block, tokens, tp](auto&& grads, nn::Saved&) {
    const nn::NoAutograd guard;
    if (planted("gradient_of_own_tokens_not_gathered")) {
      const at::Tensor whole = at::zeros({tokens, grads[0].size(1)}, grads[0].options());
      whole.narrow(0, block.begin, block.rows).copy_(grads[0]);
      return std::vector<at::Tensor>{whole};
    }
    return std::vector<at::Tensor>{join(grads[0], block, tokens, tp)};
  });
  return y;
}

at::Tensor join_rows(const at::Tensor& own, int64_t tokens, const TensorParallel& tp) {
  if (tp.size() == 1 || tp.sequence) return own;
  const Block block = block_of(tokens, tp);
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = join(own.detach(), block, tokens, tp);
  }
  nn::record("join_rows", {own}, {y}, {}, [block](auto&& grads, nn::Saved&) {
    const nn::NoAutograd guard;
    return std::vector<at::Tensor>{cut(grads[0], block)};
  });
  return y;
}

at::Tensor own_part(const at::Tensor& per_token, const TensorParallel& tp) {
  if (tp.size() == 1 || tp.sequence) return per_token;
  const Block block = block_of(per_token.size(0), tp);
  return per_token.narrow(0, block.begin, block.rows);
}

Dispatch::Dispatch(const at::Tensor& experts, int64_t num_experts, ExpertParallel parallel,
                   int64_t least)
    : parallel_(std::move(parallel)) {
  const at::Tensor chosen = experts.contiguous();
  if (gathers())
    plan_all_gather(chosen, num_experts, least);
  else
    plan_all_to_all(chosen, num_experts, least);
  const int64_t k = chosen.size(1);
  source_ = choice_.div(k, "floor"); // -1 stays -1
  places_ = values_places_.view({-1, k * values_places_.size(1)});
}

void Dispatch::plan_all_to_all(const at::Tensor& chosen, int64_t num_experts, int64_t least) {
  const int64_t etp = parallel_.etp, local = parallel_.local_experts(num_experts);
  const at::Tensor keys = chosen.flatten(), counts = counts_of_keys(keys, num_experts, least);
  const nn::HostCopy all_counts(
      gathered(counts.unsqueeze(0), parallel_.group, parallel_.turns.get())); // [ranks, E]
  // By expert, and of one in order of tokens.
  Order order = order_by_key(keys, counts, least);
  if (etp > 1) order = repeated(order, keys, counts);
  const int64_t first =
      (planted("experts_of_another_rank") ? parallel_.group.rank() % parallel_.ep()
                                          : parallel_.group.rank() / etp) *
      local;

  const at::Tensor all = all_counts.values();
  const auto rows_of = [&](int64_t rank, int64_t expert) {
    return all.const_data_ptr<int64_t>()[rank * num_experts + expert];
  };
  std::vector<int64_t> send, receive;
  for (int64_t block = 0; block < num_experts; block += local) {
    int64_t rows = 0;
    for (int64_t e = block; e < block + local; ++e) rows += rows_of(parallel_.group.rank(), e);
    send.insert(send.end(), static_cast<size_t>(etp), rows);
  }
  int64_t begin = 0;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    int64_t from_rank = 0;
    for (int64_t e = 0; e < local; ++e) {
      const int64_t rows = rows_of(rank, first + e);
      if (rows > 0) ranges_.push_back({.matrix = e, .begin = begin + from_rank, .rows = rows});
      from_rank += rows;
    }
    receive.push_back(from_rank);
    begin += from_rank;
  }
  choice_ = order.thing.narrow(0, 0, std::accumulate(send.begin(), send.end(), int64_t{0}));
  values_places_ = order.place.view({-1, etp});
  exchange_ = Exchange::rows(std::move(send), std::move(receive), parallel_.group, parallel_.turns);
}

/// The block of an ep rank once for each of its etp ranks.
Order Dispatch::repeated(const Order& order, const at::Tensor& keys,
                         const at::Tensor& counts) const {
  const int64_t etp = parallel_.etp, local = counts.numel() / parallel_.ep(),
                places = order.thing.numel() * etp;
  const at::Tensor rows = counts.view({-1, local}).sum(1), begin = rows.cumsum(0) - rows;
  const at::Tensor block = keys.clamp_min(0).div(local, "floor");
  const at::Tensor in_block = order.place - begin.index_select(0, block);
  const at::Tensor none = (keys < 0).unsqueeze(1);
  const at::Tensor copy = at::arange(etp, keys.options()).unsqueeze(0);
  const at::Tensor place = (begin.index_select(0, block) * etp + in_block).unsqueeze(1) +
                           copy * rows.index_select(0, block).unsqueeze(1); // [C, etp]
  const at::Tensor thing = at::full({places + 1}, -1, keys.options());
  const at::Tensor things = at::arange(keys.numel(), keys.options()).unsqueeze(1);
  thing.scatter_(0, place.masked_fill(none, places).flatten(), things.expand_as(place).flatten());
  return {place.masked_fill(none, -1), thing.narrow(0, 0, places)};
}

void Dispatch::plan_all_gather(const at::Tensor& chosen, int64_t num_experts, int64_t least) {
  const comm::Group& group = parallel_.group;
  const int64_t tokens = chosen.size(0), k = chosen.size(1);
  const int64_t each =
      *comm::all_reduce(at::full({1}, tokens, at::kLong), comm::ReduceOp::kMax, group)
           .const_data_ptr<int64_t>();
  const at::Tensor padded = at::full({each, k}, -1, chosen.options());
  padded.narrow(0, 0, tokens).copy_(chosen);
  const at::Tensor all = gathered(padded, group, parallel_.turns.get()); // [ranks each, k]

  // By expert, of one by rank, and of one rank in order of tokens.
  const int64_t local = parallel_.local_experts(num_experts),
                first = group.rank() / parallel_.etp * local, ranks = group.size();
  const at::Tensor expert = all.view({ranks, each * k}) - first,
                   rank = at::arange(ranks, all.options()).unsqueeze(1);
  const at::Tensor keys =
      (expert * ranks + rank).masked_fill_((expert < 0).logical_or_(expert >= local), -1).flatten();
  const at::Tensor counts = counts_of_keys(keys, local * ranks, least);
  const nn::HostCopy own_counts(counts.view({local, ranks}).sum(1)); // of each expert
  const Order order = order_by_key(keys, counts, least);

  const at::Tensor rows_of = own_counts.values();
  int64_t begin = 0;
  for (int64_t e = 0; e < local; ++e) {
    const int64_t rows = rows_of.const_data_ptr<int64_t>()[e];
    if (rows > 0) ranges_.push_back({.matrix = e, .begin = begin, .rows = rows});
    begin += rows;
  }
  choice_ = order.thing.narrow(0, 0, begin);
  values_places_ = order.place.view({-1, 1});
  exchange_ = Exchange::gather(tokens, each, group, parallel_.turns);
}

Dispatch::Sent Dispatch::send(const at::Tensor& x, const at::Tensor& per_choice) const {
  // They set off and arrive together; what is awaited first hands over.
  using enum Exchange::HandOver;
  if (gathers()) return {exchange_.start(x, kForward), exchange_.start(per_choice, kBackward)};
  return {exchange_.start(nn::take_rows(x, source_, places_), kForward),
          exchange_.start(nn::take_rows(per_choice.reshape({-1, 1}), choice_, values_places_),
                          kBackward)};
}

Dispatch::Arrived Dispatch::arrive(const Sent& sent) const {
  at::Tensor rows = exchange_.finish(sent.rows), values = exchange_.finish(sent.values);
  if (gathers()) {
    rows = nn::take_rows(rows, source_, places_);
    values = nn::take_rows(values.reshape({-1, 1}), choice_, values_places_);
  }
  return {rows, values.squeeze(1)};
}

at::Tensor Dispatch::carry(const at::Tensor& per_token) const {
  if (gathers()) return nn::take_rows(exchange_(per_token), source_, places_);
  return exchange_(nn::take_rows(per_token, source_, places_));
}

at::Tensor Dispatch::take_back(const at::Tensor& rows) const {
  const Exchange back = exchange_.back();
  return gathers() ? back(nn::sum_rows(rows, source_, places_))
                   : nn::sum_rows(back(rows), source_, places_);
}

} // namespace pentatron::parallel

#include "pentatron/parallel/expert/dispatch.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/record.h"

namespace pentatron::parallel {

namespace {

/// How many choices each expert has. [E]
at::Tensor counts_of(const at::Tensor& chosen, int64_t num_experts) {
  at::Tensor counts = at::zeros({num_experts}, at::kLong);
  const int64_t* const expert = chosen.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < chosen.numel(); ++i)
    if (expert[i] >= 0) ++counts.mutable_data_ptr<int64_t>()[expert[i]];
  return counts;
}

/// Where the choices of each expert begin, if they lie by expert. [E + 1]
std::vector<int64_t> starts_of(const at::Tensor& counts) {
  std::vector<int64_t> starts = {0};
  for (int64_t e = 0; e < counts.size(0); ++e)
    starts.push_back(starts.back() + counts.const_data_ptr<int64_t>()[e]);
  return starts;
}

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
  const at::Tensor chosen = nn::host_values(experts);
  if (gathers())
    plan_all_gather(chosen, num_experts, least);
  else
    plan_all_to_all(chosen, num_experts, least);
  const int64_t k = chosen.size(1);
  const at::Device device = experts.device();
  source_ = nn::to_device(choice_.div(k, "floor"), device); // -1 stays -1
  places_ = nn::to_device(values_places_.view({-1, k * values_places_.size(1)}), device);
  choice_ = nn::to_device(choice_, device);
  values_places_ = nn::to_device(values_places_, device);
}

void Dispatch::plan_all_to_all(const at::Tensor& chosen, int64_t num_experts, int64_t least) {
  const int64_t choices = chosen.numel();
  const int64_t* const expert = chosen.const_data_ptr<int64_t>();
  const at::Tensor counts = counts_of(chosen, num_experts).clamp_min_(least);

  // By expert, and of one in order of tokens; the block of an ep rank once for each of its etp
  // ranks.
  const std::vector<int64_t> starts = starts_of(counts);
  const int64_t etp = parallel_.etp, local = parallel_.local_experts(num_experts);
  choice_ = at::full({starts.back() * etp}, -1, at::kLong);
  values_places_ = at::full({choices, etp}, -1, at::kLong);
  int64_t* const choice_of = choice_.mutable_data_ptr<int64_t>();
  int64_t* const place_of = values_places_.mutable_data_ptr<int64_t>();
  std::vector<int64_t> next(starts.begin(), starts.end() - 1); // in order of experts
  for (int64_t i = 0; i < choices; ++i) {
    if (expert[i] < 0) continue;
    const int64_t at = next[static_cast<size_t>(expert[i])]++;
    const int64_t block = expert[i] / local * local;
    const int64_t begin = starts[static_cast<size_t>(block)],
                  rows = starts[static_cast<size_t>(block + local)] - begin;
    for (int64_t q = 0; q < etp; ++q) {
      const int64_t row = begin * etp + q * rows + (at - begin);
      choice_of[row] = i;
      place_of[i * etp + q] = row;
    }
  }
  std::vector<int64_t> send, receive;
  for (int64_t block = 0; block < num_experts; block += local)
    send.insert(send.end(), static_cast<size_t>(etp),
                starts[static_cast<size_t>(block + local)] - starts[static_cast<size_t>(block)]);

  const at::Tensor all =
      gathered(counts.unsqueeze(0), parallel_.group, parallel_.turns.get()); // [ranks, E]
  const int64_t first =
      (planted("experts_of_another_rank") ? parallel_.group.rank() % parallel_.ep()
                                          : parallel_.group.rank() / etp) *
      local;
  int64_t begin = 0;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    int64_t from_rank = 0;
    for (int64_t e = 0; e < local; ++e) {
      const int64_t rows = all.const_data_ptr<int64_t>()[rank * num_experts + first + e];
      if (rows > 0) ranges_.push_back({.matrix = e, .begin = begin + from_rank, .rows = rows});
      from_rank += rows;
    }
    receive.push_back(from_rank);
    begin += from_rank;
  }
  exchange_ = Exchange::rows(std::move(send), std::move(receive), parallel_.group, parallel_.turns);
}

void Dispatch::plan_all_gather(const at::Tensor& chosen, int64_t num_experts, int64_t least) {
  const comm::Group& group = parallel_.group;
  const int64_t tokens = chosen.size(0), k = chosen.size(1);
  const int64_t each =
      *comm::all_reduce(at::full({1}, tokens, at::kLong), comm::ReduceOp::kMax, group)
           .const_data_ptr<int64_t>();
  at::Tensor padded = at::full({each, k}, -1, at::kLong);
  padded.narrow(0, 0, tokens).copy_(chosen);
  const at::Tensor all = gathered(padded, group, parallel_.turns.get()); // [ranks each, k]

  // By expert, of one by rank, and of one rank in order of tokens.
  const int64_t local = parallel_.local_experts(num_experts),
                first = group.rank() / parallel_.etp * local;
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(local)); // choices of each expert
  const int64_t* const expert = all.const_data_ptr<int64_t>();
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    std::vector<size_t> begins;
    for (const auto& of_expert : rows) begins.push_back(of_expert.size());
    for (int64_t i = rank * each * k; i < (rank + 1) * each * k; ++i)
      if (expert[i] >= first && expert[i] < first + local)
        rows[static_cast<size_t>(expert[i] - first)].push_back(i);
    for (size_t e = 0; e < rows.size(); ++e)
      rows[e].resize(std::max(rows[e].size(), begins[e] + static_cast<size_t>(least)), -1);
  }
  std::vector<int64_t> choices;
  for (int64_t e = 0; e < local; ++e) {
    const auto& of_expert = rows[static_cast<size_t>(e)];
    if (!of_expert.empty())
      ranges_.push_back({.matrix = e, .begin = std::ssize(choices), .rows = std::ssize(of_expert)});
    choices.insert(choices.end(), of_expert.begin(), of_expert.end());
  }
  choice_ = at::tensor(choices, at::kLong);
  values_places_ = at::full({all.numel(), 1}, -1, at::kLong);
  for (size_t row = 0; row < choices.size(); ++row)
    if (choices[row] >= 0)
      values_places_.mutable_data_ptr<int64_t>()[choices[row]] = static_cast<int64_t>(row);
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

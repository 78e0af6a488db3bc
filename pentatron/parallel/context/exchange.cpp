#include "pentatron/parallel/context/exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/parallel/context/zigzag.h"

namespace pentatron::parallel {

namespace {

/// Calls use(row among those of a rank, row in `target`, rows) for each chunk of the rank.
template <class Use>
void match(const std::vector<nn::SampleChunk>& chunks, const std::vector<nn::SampleChunk>& target,
           const Use& use) {
  int64_t row = 0;
  for (const nn::SampleChunk& chunk : chunks) {
    if (chunk.size == 0) continue;
    int64_t begin = 0;
    bool found = false;
    for (const nn::SampleChunk& t : target) {
      found = t.sample == chunk.sample && t.begin <= chunk.begin &&
              chunk.begin + chunk.size <= t.begin + t.size;
      if (found) {
        use(row, begin + chunk.begin - t.begin, chunk.size);
        break;
      }
      begin += t.size;
    }
    PT_DCHECK(found);
    row += chunk.size;
  }
}

/// [rows of x, then anything up to `rows`, ...]
at::Tensor padded(const at::Tensor& x, int64_t rows) {
  if (x.size(0) == rows) return x.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  const at::Tensor y = at::zeros(sizes, x.options());
  y.narrow(0, 0, x.size(0)).copy_(x);
  return y;
}

at::Tensor with_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options());
}

} // namespace

int64_t TokenSplit::most_rows() const {
  return *std::ranges::max_element(rows);
}

TokenSplit zigzag_split(const nn::SequenceLayout& whole, int ranks) {
  return zigzag_split(whole, 0, ranks, ranks);
}

TokenSplit zigzag_split(const nn::SequenceLayout& whole, int first, int ranks, int all) {
  TokenSplit split;
  for (int rank = first; rank < first + ranks; ++rank) {
    split.chunks.push_back(zigzag_chunks(whole, rank, all));
    split.rows.push_back(num_rows(split.chunks.back()));
  }
  return split;
}

at::Tensor gather_tokens(const at::Tensor& own, const TokenSplit& split,
                         const std::vector<nn::SampleChunk>& target, const comm::Group& group) {
  const int64_t most = split.most_rows();
  const at::Tensor all = comm::all_gather(padded(own, most), 0, group),
                   ordered = with_rows(own, num_rows(target));
  for (size_t rank = 0; rank < split.chunks.size(); ++rank) {
    const at::Tensor part = all.narrow(0, static_cast<int64_t>(rank) * most, most);
    match(split.chunks[rank], target, [&](int64_t from, int64_t to, int64_t rows) {
      ordered.narrow(0, to, rows).copy_(part.narrow(0, from, rows));
    });
  }
  return ordered;
}

at::Tensor sum_to_owners(const at::Tensor& all, const TokenSplit& split,
                         const std::vector<nn::SampleChunk>& target, const comm::Group& group) {
  const int64_t most = split.most_rows();
  std::vector<int64_t> sizes = all.sizes().vec();
  sizes[0] = most * group.size();
  const at::Tensor by_rank = at::zeros(sizes, all.options());
  for (size_t rank = 0; rank < split.chunks.size(); ++rank) {
    const at::Tensor part = by_rank.narrow(0, static_cast<int64_t>(rank) * most, most);
    match(split.chunks[rank], target, [&](int64_t to, int64_t from, int64_t rows) {
      part.narrow(0, to, rows).copy_(all.narrow(0, from, rows));
    });
  }
  const int64_t own = split.rows[static_cast<size_t>(group.rank())];
  if (group.size() > 1 && planted("gathered_key_gradients_not_summed"))
    return by_rank.narrow(0, group.rank() * most, own).clone();
  return comm::reduce_scatter(by_rank, 0, group).narrow(0, 0, own);
}

at::Tensor heads_for_tokens(const at::Tensor& own, const TokenSplit& split,
                            const std::vector<nn::SampleChunk>& target, const comm::Group& group) {
  const int64_t ranks = group.size(), rows = own.size(0), heads = own.size(1) / ranks;
  // By the rank that they go to.
  const at::Tensor sent =
      own.unflatten(1, {ranks, heads}).transpose(0, 1).contiguous().flatten(0, 1);
  const at::Tensor come = comm::all_to_all_rows(
      sent, std::vector<int64_t>(static_cast<size_t>(ranks), rows), split.rows, group);
  if (ranks > 1 && planted("exchanged_tokens_in_order_of_ranks")) return come;
  const at::Tensor ordered = at::empty({num_rows(target), heads, own.size(2)}, own.options());
  int64_t first = 0;
  for (size_t rank = 0; rank < split.chunks.size(); ++rank) {
    match(split.chunks[rank], target, [&](int64_t from, int64_t to, int64_t n) {
      ordered.narrow(0, to, n).copy_(come.narrow(0, first + from, n));
    });
    first += split.rows[rank];
  }
  return ordered;
}

at::Tensor tokens_for_heads(const at::Tensor& heads, const TokenSplit& split,
                            const std::vector<nn::SampleChunk>& target, const comm::Group& group) {
  const int64_t ranks = group.size(), rows = split.rows[static_cast<size_t>(group.rank())];
  const at::Tensor sent = at::empty(heads.sizes(), heads.options());
  int64_t first = 0;
  for (size_t rank = 0; rank < split.chunks.size(); ++rank) {
    match(split.chunks[rank], target, [&](int64_t to, int64_t from, int64_t n) {
      sent.narrow(0, first + to, n).copy_(heads.narrow(0, from, n));
    });
    first += split.rows[rank];
  }
  const at::Tensor come = comm::all_to_all_rows(
      sent, split.rows, std::vector<int64_t>(static_cast<size_t>(ranks), rows), group);
  return come.unflatten(0, {ranks, rows})
      .transpose(0, 1)
      .reshape({rows, ranks * heads.size(1), heads.size(2)});
}

Hop::Hop(const at::Tensor& x, int64_t rows_to_come, const comm::Group& ring, bool late)
    : Hop(x, (ring.rank() + 1) % ring.size(), rows_to_come,
          (ring.rank() + ring.size() - 1) % ring.size(), ring, late) {}

Hop::Hop(const at::Tensor& x, int to, int64_t rows_to_come, int from, const comm::Group& group,
         bool late)
    : leaves_(x), comes_(with_rows(x, rows_to_come)) {
  comm::TransferBatch batch(group);
  if (leaves_.size(0) > 0) batch.send(leaves_, to);
  if (rows_to_come > 0) batch.recv(comes_, from);
  if (late)
    late_.emplace(std::move(batch));
  else
    work_ = batch.start();
}

at::Tensor Hop::wait() {
  if (late_) work_ = late_->start();
  late_.reset();
  work_.wait();
  leaves_ = at::Tensor();
  return std::move(comes_);
}

int rank_before(const comm::Group& ring, int hops) {
  return (ring.rank() + ring.size() - hops % ring.size()) % ring.size();
}

} // namespace pentatron::parallel

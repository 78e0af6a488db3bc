#include "pentatron/parallel/tensor/tensor_parallel.h"

#include <ATen/ATen.h>

#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::parallel {

namespace {

/// Chunks of a product: enough to hide most of the communication, few enough to keep products
/// large.
constexpr int64_t kChunks = 4;
/// Below this many rows of one rank a chunk is not worth its start.
constexpr int64_t kLeastRows = 32;

/// Cuts n rows into chunks of nearly equal size: the beginnings, and n.
std::vector<int64_t> chunk_cuts(int64_t n, bool overlap) {
  const int64_t count =
      overlap ? std::clamp<int64_t>(n / kLeastRows, 1, kChunks) : std::min<int64_t>(1, n);
  std::vector<int64_t> cuts = {0};
  for (int64_t c = 1; c <= count; ++c) cuts.push_back(n * c / count);
  return cuts;
}

int64_t part_of(int64_t tokens, const TensorParallel& tp) {
  if (tokens % tp.size() != 0)
    raise<ShapeError>("{1} tokens cannot be divided evenly among {0} sequence-parallel ranks\n  "
                      "try: parallel.sequence_parallel=false",
                      tp.size(), tokens);
  return tokens / tp.size();
}

} // namespace

void gather_rows(const at::Tensor& x, const TensorParallel& tp, const RowsFn& use) {
  if (!tp.sequence) return use(0, x);
  const int64_t part = x.size(0), ranks = tp.size();
  const std::vector<int64_t> cuts = chunk_cuts(part, tp.overlap);
  const size_t count = cuts.size() - 1;
  std::vector<at::Tensor> buffers(count);
  std::vector<comm::Work> works(count);
  const auto start = [&](size_t c) {
    const int64_t rows = cuts[c + 1] - cuts[c];
    buffers[c] = at::empty({ranks * rows, x.size(1)}, x.options());
    works[c] =
        comm::all_gather_into(buffers[c], x.narrow(0, cuts[c], rows).contiguous(), 0, tp.group);
  };
  if (count > 0) start(0);
  for (size_t c = 0; c < count; ++c) {
    if (c + 1 < count) start(c + 1);
    works[c].wait();
    if (count == 1) return use(0, buffers[0]);
    const int64_t rows = cuts[c + 1] - cuts[c];
    for (int64_t r = 0; r < ranks; ++r)
      use(r * part + (planted("chunk_at_the_wrong_rows") ? cuts[0] : cuts[c]),
          buffers[c].narrow(0, r * rows, rows));
    buffers[c] = at::Tensor();
  }
}

at::Tensor reduce_rows(int64_t tokens, int64_t features, const at::TensorOptions& options,
                       const TensorParallel& tp, const RowsFn& make) {
  if (!tp.sequence) {
    const at::Tensor out = at::empty({tokens, features}, options);
    const std::vector<int64_t> cuts = chunk_cuts(tokens, tp.overlap);
    std::vector<comm::Work> works;
    for (size_t c = 0; c + 1 < cuts.size(); ++c) {
      const at::Tensor rows = out.narrow(0, cuts[c], cuts[c + 1] - cuts[c]);
      make(cuts[c], rows);
      works.push_back(comm::all_reduce_start_(rows, comm::ReduceOp::kSum, tp.group));
    }
    for (comm::Work& work : works) work.wait();
    return out;
  }
  const int64_t part = part_of(tokens, tp), ranks = tp.size();
  const at::Tensor out = at::empty({part, features}, options);
  const std::vector<int64_t> cuts = chunk_cuts(part, tp.overlap);
  const size_t count = cuts.size() - 1;
  std::vector<at::Tensor> buffers(count); // alive until their sums are there
  std::vector<comm::Work> works;
  for (size_t c = 0; c < count; ++c) {
    const int64_t rows = cuts[c + 1] - cuts[c];
    buffers[c] = at::empty({ranks * rows, features}, options);
    if (count == 1) {
      make(0, buffers[c]);
    } else {
      for (int64_t r = 0; r < ranks; ++r)
        make(r * part + cuts[c], buffers[c].narrow(0, r * rows, rows));
    }
    works.push_back(comm::reduce_scatter_into(out.narrow(0, cuts[c], rows), buffers[c], tp.group));
  }
  for (comm::Work& work : works) work.wait();
  return out;
}

} // namespace pentatron::parallel

#include "pentatron/optim/matrices.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/optim/matrix_grid.h"

namespace pentatron::optim {

namespace {

nn::Coordinates with_rank(nn::Coordinates where, const std::string& axis, int rank) {
  where[axis].rank = rank;
  return where;
}

/// Stacked and cut to matrices: [stack, rows, columns] of a rank's tensor.
at::Tensor stacked(const at::Tensor& value, const nn::ShardSpec& spec) {
  return spec.stacked_dims == 0 ? value.unsqueeze(0) : value;
}

/// rows_of_matrices() without padding.
std::vector<RowInterval> true_rows(const nn::ShardSpec& spec, const nn::Coordinates& where,
                                   bool split_qkv) {
  std::vector<RowInterval> all = rows_of_matrices(spec, where, split_qkv);
  if (spec.shard_multiple == 0) return all;
  const auto dim = static_cast<size_t>(spec.stacked_dims);
  int64_t end = 0;
  for (const nn::LocalBox& box : nn::local_boxes(spec, where))
    end = std::max(end, box.local[dim] + box.size[dim]);
  for (RowInterval& rows : all) rows.size = std::clamp<int64_t>(end - rows.begin, 0, rows.size);
  std::erase_if(all, [](const RowInterval& rows) { return rows.size == 0; });
  return all;
}

void update_own(const MatrixField& field, const MatrixOptions& options,
                const MatrixUpdate& update) {
  const nn::ShardSpec& spec = field.param->spec();
  const at::Tensor all = stacked(field.value, spec);
  for (const RowInterval& rows : true_rows(spec, field.param->where(), options.split_qkv)) {
    // Parts divide the rows of matrices.
    update(all.narrow(1, rows.begin, rows.size));
  }
}

/// A piece of a matrix that a tensor rank holds.
struct HeldBlock {
  std::vector<int64_t> here;   // where it begins in the rank's tensor [stack, rows, columns]
  std::vector<int64_t> matrix; // where in the matrix [rows, columns]
  std::vector<int64_t> size;   // rows, columns

  int64_t numel() const { return size[0] * size[1]; }
  at::Tensor of_rank(const at::Tensor& all) const {
    return all.select(0, here[0]).narrow(0, here[1], size[0]).narrow(1, here[2], size[1]);
  }
  at::Tensor of_matrix(const at::Tensor& whole) const {
    return whole.narrow(0, matrix[0], size[0]).narrow(1, matrix[1], size[1]);
  }
};

/// A matrix whose parts are on several ranks.
struct SplitMatrix {
  at::Tensor value; // of this rank's tensor [stack, rows, columns]
  int64_t rows = 0, columns = 0;
  std::vector<std::vector<HeldBlock>> held; // by rank
  int owner = 0;

  double work() const {
    return static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(std::min(rows, columns));
  }
};

/// All blocks of a rank, as blocks of the tensor that one rank would hold: `local` in that, and in
/// the rank's.
struct Moved {
  std::vector<int64_t> whole, local, size;
};
std::vector<Moved> moved_boxes(const nn::ShardSpec& spec, const nn::Coordinates& whole,
                               const nn::Coordinates& where) {
  std::vector<Moved> moved;
  const std::vector<nn::LocalBox> wholes = nn::local_boxes(spec, whole);
  for (const nn::LocalBox& box : nn::local_boxes(spec, where)) {
    const auto contains = [&](const nn::LocalBox& w) {
      for (size_t d = 0; d < w.size.size(); ++d)
        if (box.global[d] < w.global[d] || box.global[d] >= w.global[d] + w.size[d]) return false;
      return true;
    };
    const auto home = std::ranges::find_if(wholes, contains);
    PT_DCHECK(home != wholes.end());
    Moved one{.whole = home->local, .local = box.local, .size = box.size};
    for (size_t d = 0; d < one.whole.size(); ++d) one.whole[d] += box.global[d] - home->global[d];
    if (spec.stacked_dims == 0)
      for (auto* const v : {&one.whole, &one.local}) v->insert(v->begin(), 0);
    if (spec.stacked_dims == 0) one.size.insert(one.size.begin(), 1);
    moved.push_back(std::move(one));
  }
  return moved;
}

/// The matrices of a parameter that lies split over `ranks` ranks of `axis`.
std::vector<SplitMatrix> split_matrices(const MatrixField& field, const std::string& axis,
                                        int ranks, bool split_qkv) {
  const nn::ShardSpec& spec = field.param->spec();
  nn::Coordinates whole = field.param->where();
  whole.erase(axis);
  std::vector<std::vector<Moved>> boxes;
  for (int r = 0; r < ranks; ++r)
    boxes.push_back(moved_boxes(spec, whole, with_rank(field.param->where(), axis, r)));
  const at::Tensor value = stacked(field.value, spec);
  const int64_t columns = nn::local_shape(spec, whole).back();
  std::vector<RowInterval> parts = true_rows(spec, whole, split_qkv);
  if (planted("muon_takes_fused_parts_together"))
    parts = {{parts.front().begin, parts.back().begin + parts.back().size}};
  std::vector<SplitMatrix> matrices;
  for (int64_t s = 0; s < value.size(0); ++s) {
    for (const RowInterval& rows : parts) {
      SplitMatrix one{.value = value, .rows = rows.size, .columns = columns, .held = {}};
      for (const std::vector<Moved>& of_rank : boxes) {
        std::vector<HeldBlock>& blocks = one.held.emplace_back();
        for (const Moved& b : of_rank) {
          if (s < b.whole[0] || s >= b.whole[0] + b.size[0] || b.whole[1] < rows.begin ||
              b.whole[1] >= rows.begin + rows.size)
            continue;
          blocks.push_back({.here = {b.local[0] + s - b.whole[0], b.local[1], b.local[2]},
                            .matrix = {b.whole[1] - rows.begin, b.whole[2]},
                            .size = {b.size[1], b.size[2]}});
        }
      }
      matrices.push_back(std::move(one));
    }
  }
  return matrices;
}

/// The heaviest first, to the rank that has least.
void choose_owners(std::vector<SplitMatrix>& matrices, int ranks) {
  std::vector<SplitMatrix*> order;
  for (SplitMatrix& m : matrices) order.push_back(&m);
  std::ranges::stable_sort(order, std::greater(), [](const SplitMatrix* m) { return m->work(); });
  std::vector<double> load(static_cast<size_t>(ranks), 0);
  for (SplitMatrix* const m : order) {
    const auto least = std::ranges::min_element(load);
    m->owner = static_cast<int>(least - load.begin());
    *least += m->work();
  }
}

/// Where a block lies in what the owner of its matrix is sent.
struct Place {
  const HeldBlock* block = nullptr;
  int64_t begin = 0;

  at::Tensor of(const at::Tensor& flat) const {
    return flat.narrow(0, begin, block->numel()).view(block->size);
  }
};
/// By matrix: the blocks of one rank after the other. `reversed`: those of other ranks there.
std::vector<std::vector<Place>> places_of(const std::vector<SplitMatrix>& matrices, int owner,
                                          bool reversed = false) {
  std::vector<std::vector<Place>> places(matrices.size());
  int64_t begin = 0;
  const size_t ranks = matrices.front().held.size();
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < matrices.size(); ++i) {
      if (matrices[i].owner != owner) continue;
      for (const HeldBlock& b : matrices[i].held[reversed ? ranks - 1 - r : r]) {
        places[i].push_back({&b, begin});
        begin += b.numel();
      }
    }
  return places;
}

/// Every rank sends its blocks to the matrices' owners, which update them, and is sent them back.
void exchange(std::vector<SplitMatrix>& matrices, const comm::Group& group,
              const MatrixUpdate& update) {
  const int ranks = group.size(), here = group.rank();
  choose_owners(matrices, ranks);
  const auto n = static_cast<size_t>(ranks);
  std::vector<int64_t> out(n, 0), in(n, 0); // elements for each owner, and from each rank
  for (const SplitMatrix& m : matrices)
    for (int r = 0; r < ranks; ++r)
      for (const HeldBlock& b : m.held[static_cast<size_t>(r)]) {
        if (r == here) out[static_cast<size_t>(m.owner)] += b.numel();
        if (m.owner == here) in[static_cast<size_t>(r)] += b.numel();
      }
  const auto options = matrices.front().value.options();
  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  /// Calls `visit` for this rank's blocks with their places in what it sends and is sent back.
  const auto for_own_blocks = [&](const at::Tensor& flat, const auto& visit) {
    std::vector<int64_t> at(n, 0);
    std::exclusive_scan(out.begin(), out.end(), at.begin(), int64_t{0});
    for (const SplitMatrix& m : matrices)
      for (const HeldBlock& b : m.held[static_cast<size_t>(here)]) {
        int64_t& begin = at[static_cast<size_t>(m.owner)];
        visit(b.of_rank(m.value), flat.narrow(0, begin, b.numel()).view(b.size));
        begin += b.numel();
      }
  };
  at::Tensor sent = at::empty({total(out)}, options), owned = at::empty({total(in)}, options);
  for_own_blocks(sent, [](const at::Tensor& own, const at::Tensor& flat) { flat.copy_(own); });
  comm::all_to_all_rows_into(owned, sent, out, in, group).wait();
  const auto places = places_of(matrices, here),
             returned = planted("muon_updates_return_to_other_ranks")
                            ? places_of(matrices, here, true)
                            : places;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i].owner != here) continue;
    const at::Tensor whole = at::empty({1, matrices[i].rows, matrices[i].columns}, options);
    for (const Place& p : places[i]) p.block->of_matrix(whole[0]).copy_(p.of(owned));
    update(whole);
    for (const Place& p : returned[i]) p.of(owned).copy_(p.block->of_matrix(whole[0]));
  }
  comm::all_to_all_rows_into(sent, owned, in, out, group).wait();
  for_own_blocks(sent, [](const at::Tensor& own, const at::Tensor& flat) { own.copy_(flat); });
}

} // namespace

void update_matrices(const std::vector<MatrixField>& fields, const MatrixOptions& options,
                     const comm::Group& tensor, const MatrixUpdate& update) {
  std::vector<SplitMatrix> split;
  for (const MatrixField& field : fields) {
    const std::string axis = split_axis(*field.param);
    if (axis.empty() || options.blocks || planted("muon_updates_blocks_of_matrices")) {
      update_own(field, options, update);
      continue;
    }
    PT_DCHECK(field.param->where().at(axis).size == tensor.size());
    std::ranges::move(split_matrices(field, axis, tensor.size(), options.split_qkv),
                      std::back_inserter(split));
  }
  if (!split.empty()) exchange(split, tensor, update);
}

} // namespace pentatron::optim

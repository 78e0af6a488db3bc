#include "pentatron/optim/matrix_grid.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::optim {

namespace {

bool is_attention_part(const nn::FusedPart& part) {
  return part.name == "q" || part.name == "k" || part.name == "v";
}

bool takes_parts(const nn::ShardSpec& spec, bool split_qkv) {
  return !spec.parts.empty() && (split_qkv || !is_attention_part(spec.parts.front()));
}

} // namespace

nn::ShardSpec spec_of_rows(const nn::ShardSpec& spec) {
  nn::ShardSpec rows = spec;
  const int last = static_cast<int>(spec.shape.size()) - 1;
  rows.shape.pop_back();
  std::erase_if(rows.placements, [&](const auto& one) {
    return one.second.kind == nn::Placement::Kind::kShard && one.second.dim == last;
  });
  return rows;
}

nn::ShardSpec spec_of_columns(const nn::ShardSpec& spec) {
  nn::ShardSpec columns = spec;
  const int dim = spec.stacked_dims;
  columns.parts.clear();
  columns.parts_dim = 0;
  columns.shard_multiple = 0;
  columns.shape[static_cast<size_t>(dim)] = std::max<int64_t>(1, std::ssize(spec.parts));
  std::erase_if(columns.placements, [&](const auto& one) {
    return one.second.kind == nn::Placement::Kind::kShard && one.second.dim == dim;
  });
  return columns;
}

std::vector<RowInterval> rows_of_matrices(const nn::ShardSpec& spec, const nn::Coordinates& where,
                                          bool split_qkv) {
  const auto dim = static_cast<size_t>(spec.parts.empty() ? spec.stacked_dims : spec.parts_dim);
  if (!takes_parts(spec, split_qkv)) return {{0, nn::local_shape(spec, where)[dim]}};
  std::vector<RowInterval> rows;
  for (const nn::LocalBox& box : nn::local_boxes(spec, where)) {
    const bool first =
        std::ranges::all_of(rows, [&](const RowInterval& r) { return r.begin != box.local[dim]; });
    if (first) rows.push_back({box.local[dim], box.size[dim]});
  }
  std::ranges::sort(rows, {}, &RowInterval::begin);
  return rows;
}

std::string split_axis(const nn::Param& param) {
  for (const auto& [axis, placement] : param.spec().placements) {
    const auto found = param.where().find(axis);
    if (placement.kind == nn::Placement::Kind::kShard &&
        placement.dim >= param.spec().stacked_dims && found != param.where().end() &&
        found->second.size > 1)
      return axis;
  }
  return {};
}

at::Tensor SumsOverRanks::add(at::Tensor sum, bool split) {
  if (split) parts_.push_back(sum);
  return sum;
}

void SumsOverRanks::reduce(const comm::Group& group) {
  if (parts_.empty()) return;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& part : parts_) flat.push_back(part.flatten());
  const at::Tensor all = at::cat(flat);
  comm::all_reduce_(all, comm::ReduceOp::kSum, group);
  int64_t begin = 0;
  for (at::Tensor& part : parts_) {
    part.copy_(all.narrow(0, begin, part.numel()).view(part.sizes()));
    begin += part.numel();
  }
  parts_.clear();
}

MatrixGrid::MatrixGrid(const nn::Param& param, bool split_qkv) {
  const nn::ShardSpec& spec = param.spec();
  const std::vector<int64_t>& local = param.shape();
  const auto dim = static_cast<size_t>(spec.stacked_dims);
  const bool vector = local.size() == dim + 1;
  PT_DCHECK(vector || local.size() == dim + 2);
  int64_t stack = 1;
  for (size_t d = 0; d < dim; ++d) stack *= local[d];
  shape_ = {stack, local[dim], vector ? 1 : local.back()};
  columns_ = vector ? 1 : spec.shape.back();
  intervals_ = rows_of_matrices(spec, param.where(), split_qkv);
  if (takes_parts(spec, split_qkv))
    for (const nn::FusedPart& part : spec.parts) rows_.push_back(part.pieces * part.piece_size);
  else
    rows_ = {spec.shape[dim]};
  PT_DCHECK(rows_.size() == intervals_.size());
  std::string axis = split_axis(param);
  if (planted("adafactor_sums_of_one_tensor_rank")) axis.clear();
  rows_split_ = !axis.empty() && spec.placements.at(axis).dim == spec.stacked_dims;
  columns_split_ = !axis.empty() && !rows_split_;
  // A rank has padding whether or not others hold rows too.
  if (rows_split_ || spec.shard_multiple > 0) counted_ = counted_rows(param, axis);
}

at::Tensor MatrixGrid::counted_rows(const nn::Param& param, const std::string& axis) const {
  const nn::ShardSpec& spec = param.spec();
  const auto dim = static_cast<size_t>(spec.stacked_dims);
  at::Tensor held = at::zeros({shape_[1], 1}, at::kDouble);
  for (const nn::LocalBox& box : nn::local_boxes(spec, param.where()))
    held.narrow(0, box.local[dim], box.size[dim]).fill_(1);
  if (!rows_split_) return held;
  at::Tensor own = at::zeros_like(held);
  const int64_t columns = shape_[2];
  for (const nn::FlatRange& range : nn::counted_ranges(spec, {{axis, param.where().at(axis)}})) {
    const int64_t begin = std::min(range.begin / columns, shape_[1]);
    const int64_t end = std::min((range.begin + range.size) / columns, shape_[1]);
    own.narrow(0, begin, end - begin).fill_(1);
  }
  return held.mul_(own);
}

at::Tensor MatrixGrid::view(const at::Tensor& flat) const {
  return flat.view(shape_);
}

at::Tensor MatrixGrid::counted(const at::Tensor& x) const {
  return counted_.defined() ? x * counted_.to(x.options()) : x;
}

at::Tensor MatrixGrid::sums_of_rows(const at::Tensor& x, SumsOverRanks& sums) const {
  return sums.add(x.sum(-1), columns_split_);
}

at::Tensor MatrixGrid::sums_of_columns(const at::Tensor& x, SumsOverRanks& sums) const {
  const at::Tensor own = counted(x);
  std::vector<at::Tensor> parts;
  for (const RowInterval& rows : intervals_)
    parts.push_back(own.narrow(1, rows.begin, rows.size).sum(1));
  return sums.add(at::stack(parts, 1), rows_split_);
}

at::Tensor MatrixGrid::totals(const at::Tensor& x, SumsOverRanks& sums) const {
  const at::Tensor own = counted(x);
  std::vector<at::Tensor> parts;
  for (const RowInterval& rows : intervals_)
    parts.push_back(own.narrow(1, rows.begin, rows.size).sum(at::IntArrayRef({1, 2})));
  return sums.add(at::stack(parts, 1), rows_split_ || columns_split_);
}

at::Tensor MatrixGrid::totals_of_rows(const at::Tensor& x, SumsOverRanks& sums) const {
  const at::Tensor own = counted(x.unsqueeze(-1));
  std::vector<at::Tensor> parts;
  for (const RowInterval& rows : intervals_)
    parts.push_back(own.narrow(1, rows.begin, rows.size).sum(at::IntArrayRef({1, 2})));
  return sums.add(at::stack(parts, 1), rows_split_);
}

at::Tensor MatrixGrid::totals_of(const at::Tensor& rows, const at::Tensor& columns) const {
  if (!columns_split_) return columns.sum(-1);
  std::vector<at::Tensor> parts; // every rank has all rows
  for (const RowInterval& own : intervals_)
    parts.push_back(rows.narrow(1, own.begin, own.size).sum(1));
  return at::stack(parts, 1);
}

at::Tensor MatrixGrid::by_row(const at::Tensor& x) const {
  std::vector<at::Tensor> parts;
  for (int64_t p = 0; p < this->parts(); ++p)
    parts.push_back(x.narrow(1, p, 1).expand({x.size(0), interval(p).size}));
  return at::cat(parts, 1);
}

} // namespace pentatron::optim

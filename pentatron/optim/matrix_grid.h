/// The matrices that a parameter consists of on a rank, and sums over their rows and columns, whole
/// over the tensor ranks that hold other parts of them.
///
/// Shapes: S = members of a stack (experts), R and C = rows and columns of the rank's tensor, P =
/// parts of a fused weight (q, k, v; gate, up), each of which is a matrix. A vector is taken for a
/// matrix with one column.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param.h"

namespace pentatron::optim {

/// One number for each row [stack..., R], and for each column of each part [stack..., P, C].
nn::ShardSpec spec_of_rows(const nn::ShardSpec& spec);
nn::ShardSpec spec_of_columns(const nn::ShardSpec& spec);

/// An interval of rows of the rank's tensor.
struct RowInterval {
  int64_t begin = 0, size = 0;
};
/// The rows of each matrix, of a tensor whose ranks are at `where`.
std::vector<RowInterval> rows_of_matrices(const nn::ShardSpec& spec, const nn::Coordinates& where,
                                          bool split_qkv);
/// The axis over whose ranks a parameter's matrices are split; empty: this rank has them whole.
std::string split_axis(const nn::Param& param);

/// Sums of which every rank of a group has a part, completed by one all-reduce.
class SumsOverRanks {
 public:
  /// Complete after reduce(), in place; complete already unless `split`.
  at::Tensor add(at::Tensor sum, bool split);
  void reduce(const comm::Group& group);

 private:
  std::vector<at::Tensor> parts_;
};

class MatrixGrid {
 public:
  explicit MatrixGrid(const nn::Param& param, bool split_qkv = true);

  int64_t parts() const { return static_cast<int64_t>(intervals_.size()); }
  /// Rows of a part on this rank, and of the whole matrix.
  const RowInterval& interval(int64_t part) const { return intervals_[static_cast<size_t>(part)]; }
  int64_t rows(int64_t part) const { return rows_[static_cast<size_t>(part)]; }
  int64_t columns() const { return columns_; } ///< of the whole matrix

  /// A flat vector of the rank's elements as [S, R, C].
  at::Tensor view(const at::Tensor& flat) const;
  /// Of x [S, R, C]: [S, R], [S, P, C] and [S, P], to be completed by sums.reduce().
  at::Tensor sums_of_rows(const at::Tensor& x, SumsOverRanks& sums) const;
  at::Tensor sums_of_columns(const at::Tensor& x, SumsOverRanks& sums) const;
  at::Tensor totals(const at::Tensor& x, SumsOverRanks& sums) const;
  /// Of x [S, R], a number for each row: [S, P].
  at::Tensor totals_of_rows(const at::Tensor& x, SumsOverRanks& sums) const;
  /// [S, P] of complete sums of rows and columns.
  at::Tensor totals_of(const at::Tensor& rows, const at::Tensor& columns) const;
  /// x [S, P] as [S, R]: each row has its part's.
  at::Tensor by_row(const at::Tensor& x) const;

 private:
  at::Tensor counted(const at::Tensor& x) const;
  /// counted_, of a parameter whose rows are split over `axis`, or padded.
  at::Tensor counted_rows(const nn::Param& param, const std::string& axis) const;

  std::vector<RowInterval> intervals_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> shape_; // S, R, C
  int64_t columns_ = 0;
  bool rows_split_ = false, columns_split_ = false;
  at::Tensor counted_; // [R, 1]: 0 for padding and rows that another rank counts; undefined: all 1
};

} // namespace pentatron::optim

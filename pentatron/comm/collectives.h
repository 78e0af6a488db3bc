/// The collectives on tensors. Every rank of the group calls the same ones in the same order.
///
/// On a group of one each is the identity, and what it returns may be the argument itself. Sums are
/// in rank order and bitwise the same on every rank; bf16 and fp16 accumulate in fp32 and round
/// once. Throws CommError on all ranks if they disagree on operation, shape or dtype, naming group,
/// operation and number; ShapeError on this rank if its own arguments cannot work.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/work.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace at {
class Tensor;
}

namespace pentatron::comm {

/// Sum or maximum over the ranks, elementwise; NaN wins a maximum. Not differentiable: throws Error
/// if a gradient would be lost (see copy_to and reduce_from in differentiable.h).
at::Tensor all_reduce(const at::Tensor& x, ReduceOp op, const Group& group);
/// In place; any strides.
void all_reduce_(const at::Tensor& x, ReduceOp op, const Group& group);
/// In place without waiting; `x` contiguous.
[[nodiscard]] Work all_reduce_start_(const at::Tensor& x, ReduceOp op, const Group& group);

/// Concatenates every rank's `x` along `dim`, in rank order.
///   x       [..., d, ...]  same shape and dtype on all ranks
///   returns [..., d * group.size(), ...]
/// Differentiable: backward is reduce_scatter over the same dim.
at::Tensor all_gather(const at::Tensor& x, int64_t dim, const Group& group);
/// Starts an all-gather into `out` and returns without waiting. `x` may be this rank's part of
/// `out`.
[[nodiscard]] Work all_gather_into(const at::Tensor& out, const at::Tensor& x, int64_t dim,
                                   const Group& group);

/// Sums `x` over the ranks and keeps this rank's part of `dim`.
///   x       [..., d * group.size(), ...]  same shape and dtype on all ranks
///   returns [..., d, ...]
/// Differentiable: backward is all_gather over the same dim.
at::Tensor reduce_scatter(const at::Tensor& x, int64_t dim, const Group& group);
/// Starts a reduce-scatter along dim 0 into `out` and returns without waiting. Both tensors must be
/// contiguous. `out` may be this rank's part of `x`.
[[nodiscard]] Work reduce_scatter_into(const at::Tensor& out, const at::Tensor& x,
                                       const Group& group);

/// The two with parts of different lengths: `rows[r]` of rank r, the same list on all ranks.
///   whole [sum of rows, ...]   part [rows[rank], ...], may be this rank's part of `whole`
[[nodiscard]] Work all_gather_rows_into(const at::Tensor& whole, const at::Tensor& part,
                                        const std::vector<int64_t>& rows, const Group& group);
[[nodiscard]] Work reduce_scatter_rows_into(const at::Tensor& part, const at::Tensor& whole,
                                            const std::vector<int64_t>& rows, const Group& group);

/// Overwrites `x` with the root's.
void broadcast_(const at::Tensor& x, int root, const Group& group);

/// Sends send_rows[r] rows of `x` to rank r and concatenates what arrives, in rank order.
///   x       [sum of send_rows, ...]   send_rows[r] here equals recv_rows[rank here] on rank r
///   returns [sum of recv_rows, ...]
/// Differentiable: backward sends the rows back.
at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<int64_t>& send_rows,
                           const std::vector<int64_t>& recv_rows, const Group& group);
/// Starts the exchange into `out` and returns without waiting. Both tensors must be contiguous.
[[nodiscard]] Work all_to_all_rows_into(const at::Tensor& out, const at::Tensor& x,
                                        const std::vector<int64_t>& send_rows,
                                        const std::vector<int64_t>& recv_rows, const Group& group);

/// Splits `split_dim` over the ranks and concatenates along `concat_dim` what arrives, in rank
/// order.
///   x       [..., s, ..., c, ...]
///   returns [..., s / group.size(), ..., c * group.size(), ...]
/// Differentiable: backward exchanges the dims.
at::Tensor all_to_all(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                      const Group& group);

/// One transfer; both wait until it has taken place. `recv` writes into `x`.
void send(const at::Tensor& x, int peer, const Group& group);
void recv(const at::Tensor& x, int peer, const Group& group);

/// Several transfers that make progress together, so that neighbours which all send first do not
/// wait for each other forever. Between two ranks the n-th send meets the n-th receive. Tensors are
/// contiguous.
class TransferBatch {
 public:
  explicit TransferBatch(Group group);
  TransferBatch(TransferBatch&&) noexcept;
  TransferBatch& operator=(TransferBatch&&) noexcept;
  ~TransferBatch();

  TransferBatch& send(const at::Tensor& x, int peer);
  TransferBatch& recv(const at::Tensor& x, int peer);
  /// Starts what was added since the last start.
  [[nodiscard]] Work start();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns when all ranks of the group have called it.
void barrier(const Group& group);

} // namespace pentatron::comm
